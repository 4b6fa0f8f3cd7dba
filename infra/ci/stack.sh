#!/usr/bin/env bash
# Builds the stack, deploys it to the emulator and drives it; arguments go to tests/stack_test.py. A clean release
# build of both functions is most of its time; CARGO_TARGET_DIR is honoured, so keep it from run to run.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/ci/tools.sh
exec "$DORMOUSE_MINISTACK/python" tests/stack_test.py "$@"
