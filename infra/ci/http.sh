#!/usr/bin/env bash
# The HTTP API of a real `dormouse serve` on loopback, held to its own description: schemathesis makes requests from
# /openapi.json, good ones and bad ones, and no answer may be a 5xx, an undescribed status or another shape. About 40 s.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/ci/tools.sh
cargo build --quiet --bin dormouse
target="${CARGO_TARGET_DIR:-target}"

work="$(mktemp -d)"
token=a-token-for-this-run-alone
# In a session of its own, with nothing of this one's settings.
setsid env -i PATH=/usr/bin:/bin HOME="$work" DORMOUSE_TOKENS="{\"ann\":\"$token\",\"bob\":\"of-somebody-else-entirely\"}" \
  DORMOUSE_HTTP__AUTH=bearer DORMOUSE_HTTP__TOKENS_ENV=DORMOUSE_TOKENS \
  "$target/debug/dormouse" serve --dir "$work/dormouse" >"$work/endpoints" 2>"$work/log" &
serving=$!
trap 'kill -- "-$serving" 2>/dev/null || true; wait "$serving" 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 100); do
  if [[ -s "$work/endpoints" ]]; then break; fi
  sleep 0.1
done
url="$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["http"])' "$work/endpoints")" || { cat "$work/log"; exit 1; }

# A thread with an answer and a thread whose call is out for a minute: for the addresses that a generator cannot guess.
say() { curl -sf -o /dev/null -H "authorization: Bearer $token" --json "{\"text\":\"$2\"}" "$url/threads/$1/messages"; }
say quiet "say hello"
say waiting 'call srv_slow {\"ms\":60000}'

# A request may be right by its schema and still name nothing that is there, so 404 and 409 are fair answers to it.
cd "$work"
cat >schemathesis.toml <<'TOML'
seed = 1
generation.max-examples = 25
[phases.stateful]
enabled = false
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404", "409", "410"]
TOML
status=0
timeout 120 "$DORMOUSE_SCHEMATHESIS/schemathesis" --config-file schemathesis.toml run "$url/openapi.json" \
  --header "Authorization: Bearer $token" --workers 2 --request-timeout 20 --max-failures 5 \
  --exclude-path '/rap/{token}' --exclude-path '/hooks/{token}' >"$work/report" 2>&1 || status=$?
tail -n 60 "$work/report"
if grep -aE "panicked|ERROR" "$work/log"; then
  echo "the server has logged an error" >&2
  exit 1
fi
exit "$status"
