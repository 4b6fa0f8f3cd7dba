#!/usr/bin/env bash
# Measures, and writes the table in the README's performance section. About 2 minutes once the benches are built.
set -euo pipefail
cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/dormouse"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}"
# Where criterion leaves its estimates.
export CRITERION_HOME="$CARGO_TARGET_DIR/criterion"
allocations="$(mktemp)"
trap 'rm -f "$allocations"' EXIT

# Built first, so that no compiler runs beside what is measured.
cargo bench --quiet --no-run
cargo bench --quiet --bench load --bench render --bench slice --bench compacted
cargo bench --quiet --bench allocations >"$allocations"
python3 infra/bench.py "$CRITERION_HOME" "$allocations" README.md
