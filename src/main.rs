//! The `dormouse` command: everything on one machine, for people and scripts. Its rooms are in `cli`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
