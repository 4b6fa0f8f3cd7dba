#!/usr/bin/env bash
# Builds the stack, deploys it to the emulator and drives it; arguments go to tests/stack_test.py. A clean release
# build of the functions is most of its time; CARGO_TARGET_DIR is honoured, so keep it from run to run.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/ci/tools.sh
# The shipped profile optimises for size and links with fat LTO, for each of four functions: that takes as long as everything
# else. The code is the same without.
export CARGO_PROFILE_RELEASE_LTO="${CARGO_PROFILE_RELEASE_LTO:-off}"
export CARGO_PROFILE_RELEASE_OPT_LEVEL="${CARGO_PROFILE_RELEASE_OPT_LEVEL:-1}"
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS="${CARGO_PROFILE_RELEASE_CODEGEN_UNITS:-16}"
exec "$DORMOUSE_MINISTACK/python" tests/stack_test.py "$@"
