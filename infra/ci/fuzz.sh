#!/usr/bin/env bash
# Fuzzes what reads other people's bytes: builds the targets of fuzz/ and runs each for a while, as many at a time as
# there are processors. Stable Rust, no sanitizer: dormouse forbids `unsafe`, so what is sought is a panic, an overflow,
# a broken promise, a hang. Fails on the first of any, and says where its input lies.
#
#   bash infra/ci/fuzz.sh                      60 s a target, from the seeds and always with the same random numbers
#   bash infra/ci/fuzz.sh 600 render           10 minutes of one target
#   FUZZ_SEED=$RANDOM FUZZ_CORPUS=dir …        explores: other numbers, and what was found is kept in `dir`
#   fuzz/…/TARGET FILE                         runs one input again (the path is printed)
set -euo pipefail
cd "$(dirname "$0")/../.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/dormouse"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}/fuzz"
seconds="${1:-60}"
seed="${FUZZ_SEED:-20261130}"
version=0.13.2
# Bounds of one input; and of the stack, which is that of a worker's threads.
max_len=8192 timeout=20 rss_mb=3072 stack_kb=2048

tool="$cache/cargo-fuzz-$version"
if ! [[ -x "$tool/bin/cargo-fuzz" ]]; then
  # Installed under another name first: a build that is killed half-way must not look finished.
  rm -rf "$tool.part"
  env -u RUSTFLAGS CARGO_TARGET_DIR="$CARGO_TARGET_DIR/tool" \
    cargo install --locked --quiet --debug --root "$tool.part" "cargo-fuzz@$version"
  rm -rf "$tool" "$CARGO_TARGET_DIR/tool"
  mv "$tool.part" "$tool"
fi

cargo fmt --check --manifest-path fuzz/Cargo.toml
cargo fetch --quiet --locked --manifest-path fuzz/Cargo.toml || {
  echo "fuzz/Cargo.lock is behind Cargo.toml: cargo update --workspace --manifest-path fuzz/Cargo.toml" >&2
  exit 1
}
"$tool/bin/cargo-fuzz" fuzz build --sanitizer none --codegen-units 16
bin="$CARGO_TARGET_DIR/$(rustc -vV | sed -n 's/^host: //p')/release"

if (( $# > 1 )); then
  targets=("${@:2}")
else
  mapfile -t targets < <("$tool/bin/cargo-fuzz" fuzz list)
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# What the frozen formats hold are seeds, too; of the table each row, since a short input is soon run.
mkdir -p "$work/golden/stored_row"
cp -r tests/golden/input "$work/golden/queue_body"
python3 - tests/golden/rows.json "$work/golden/stored_row" <<'ROWS'
import json, sys
for n, row in enumerate(json.load(open(sys.argv[1]))):
    json.dump([row], open(f"{sys.argv[2]}/{n}", "w"))
ROWS

# Runs one target; its log is the result.
run() {
  local target="$1" corpus="${FUZZ_CORPUS:-$work/corpus}/$1" artifacts="fuzz/artifacts/$1" seeds=() dir
  mkdir -p "$corpus" "$artifacts"
  for dir in "fuzz/seeds/$target" "$work/golden/$target"; do
    if [[ -d "$dir" ]]; then seeds+=("$dir"); fi
  done
  ulimit -s "$stack_kb"
  RUST_BACKTRACE=1 "$bin/$target" "$corpus" "${seeds[@]}" -seed="$seed" -max_total_time="$seconds" -max_len="$max_len" \
    -timeout="$timeout" -rss_limit_mb="$rss_mb" -dict=fuzz/json.dict -artifact_prefix="$artifacts/" \
    -print_final_stats=1 >"$work/$target.log" 2>&1
}

# Says what came of one target.
report() {
  local target="$1" outcome="$2" log="$work/$1.log" executions coverage
  executions="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  coverage="$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)"
  printf '%-16s %9s executions, coverage %5s: %s\n' "$target" "${executions:-?}" "${coverage:-?}" "$outcome"
}

declare -A names
failed=()
finish() {
  local pid status=0
  wait -n -p pid || status=$?
  if (( status == 0 )); then
    report "${names[$pid]}" ok
  else
    report "${names[$pid]}" "FAILED ($status)"
    failed+=("${names[$pid]}")
  fi
}
jobs="$(nproc)" running=0
for target in "${targets[@]}"; do
  if (( running == jobs )); then
    finish
    running=$((running - 1))
  fi
  run "$target" &
  names[$!]="$target"
  running=$((running + 1))
done
for (( ; running > 0; running-- )); do finish; done

for target in "${failed[@]}"; do
  printf '\n== %s\n' "$target" >&2
  grep -v -E '^(#[0-9]+|\s*NEW_FUNC|Dictionary|INFO:|WARNING:|stat::)' "$work/$target.log" | tail -40 >&2
  artifact="$(sed -n 's/.*Test unit written to //p' "$work/$target.log" | tail -1)"
  printf 'again: %s %s\n' "$bin/$target" "${artifact:-(no input was written)}" >&2
done
(( ${#failed[@]} == 0 ))
