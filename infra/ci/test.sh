#!/usr/bin/env bash
# Every check of dormouse, on a machine that has a Rust toolchain, a C compiler, Python 3 and Node 20. What else it
# needs is installed below ${XDG_CACHE_HOME:-~/.cache}/dormouse, once (Chromium, by root, as a package of the system); so is
# what is built. About 35 minutes the first time on two cores.
#
#   bash infra/ci/test.sh            everything
#   bash infra/ci/test.sh quick      without the fuzzing, the Lambda build and the deployed stack; says so
set -euo pipefail
cd "$(dirname "$0")/../.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/dormouse"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}" RUST_BACKTRACE="${RUST_BACKTRACE:-0}"
# A gate judges a change, so the properties see the same cases each time; exploring is a run without the seed, or with
# PROPTEST_CASES and SIM_FIRST set higher.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-20261130}"
step() { printf '\n== %s (%s)\n' "$1" "$(date +%T)"; }

step "tools"
. infra/ci/tools.sh
# Tool servers that somebody else wrote, unmodified. Built aside, so that their hundreds of crates do not stay; and
# installed under another name first, by cargo: a build that is killed half-way must not look finished.
peers="$cache/peers"
mkdir -p "$cache"
aside="$(mktemp -d "$cache/building-XXXXXX")"
trap 'rm -rf "$aside"' EXIT
# Where there is no bubblewrap, sandbox-local's build script installs one for the whole system. Ours runs without: all
# that the build wants to see is that there is one.
printf '#!/bin/sh\necho "bubblewrap, for the build alone"\n' >"$aside/bwrap"
chmod +x "$aside/bwrap"
for peer in rap-steering-server@0.2.0 sandbox-local@0.2.0; do
  if ! [[ -x "$peers/bin/${peer%@*}" ]]; then
    PATH="$aside:$PATH" CARGO_TARGET_DIR="$aside/target" \
      cargo install --locked --quiet --debug --root "$peers" "$peer"
  fi
done
command -v git >/dev/null || echo "tools: there is no git, so nothing is tested against sandbox-local" >&2

step "format, lints, documentation, licences"
cargo fmt --check
cargo clippy --quiet --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps
"$DORMOUSE_DENY/cargo-deny" --log-level error check licenses bans sources

step "the inspector is what its source builds"
bash infra/ci/inspector.sh

step "template"
bash infra/ci/lint.sh

step "tests"
# The referee: a DynamoDB and an SQS that nobody here wrote. It dies with this script.
work="$(mktemp -d)"
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
mkdir -p "$work/home" "$work/tmp"
setsid env -i PATH=/usr/bin:/bin HOME="$work/home" TMPDIR="$work/tmp" BIND_HOST=127.0.0.1 GATEWAY_PORT="$port" \
  "$DORMOUSE_MINISTACK/ministack" >"$work/ministack.log" 2>&1 &
referee=$!
trap 'kill -- "-$referee" 2>/dev/null || true; rm -rf "$work" "$aside"' EXIT
for _ in $(seq 100); do
  if curl -sf -o /dev/null "http://127.0.0.1:$port/_ministack/health"; then break; fi
  sleep 0.2
done
curl -sf -o /dev/null "http://127.0.0.1:$port/_ministack/health" || { cat "$work/ministack.log"; exit 1; }
export DORMOUSE_TEST_DYNAMODB_URL="http://127.0.0.1:$port"
export DORMOUSE_TEST_PYTHON="$DORMOUSE_MINISTACK/python"
export DORMOUSE_TEST_STEERING="$peers/bin/rap-steering-server"
export DORMOUSE_TEST_SANDBOX="$peers/bin/sandbox-local"
export DORMOUSE_TEST_MCP_TIME="$DORMOUSE_MCP/mcp-server-time"
export DORMOUSE_TEST_MCP_EXCEL="$DORMOUSE_MCP/excel-mcp-server"
export DORMOUSE_TEST_AIMOCK="$DORMOUSE_AIMOCK/llmock"
export DORMOUSE_TEST_AGUI="$DORMOUSE_AGUI"
export DORMOUSE_TEST_INSPECTOR="$DORMOUSE_INSPECTOR"
# What mostly waits runs beside what mostly computes.
waits=(agui_clients agui_http agui_stream examples inspector load mock_llms peer_sandbox peers restart schedules time_limits timers)
computes=()
for file in tests/*.rs; do
  name="$(basename "$file" .rs)"
  if [[ " ${waits[*]} " != *" $name "* ]]; then computes+=(--test "$name"); fi
done
cargo test --no-run --quiet
cargo test --no-fail-fast "${waits[@]/#/--test=}" >"$work/waits.log" 2>&1 &
waiting=$!
status=0
cargo test --no-fail-fast --lib --bins "${computes[@]}" || status=$?
cargo test --doc --quiet || status=$?
wait "$waiting" || status=$?
cat "$work/waits.log"
(( status == 0 ))

step "the HTTP API, against its description"
bash infra/ci/http.sh

if [[ "${1:-}" == quick ]]; then
  printf '\nSKIPPED: the fuzzing, the Lambda build and the deployed stack (quick)\n'
  exit 0
fi
step "fuzzing"
bash infra/ci/fuzz.sh
step "the stack, deployed to the emulator"
bash infra/ci/stack.sh
step "done"
