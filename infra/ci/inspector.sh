#!/usr/bin/env bash
# The inspector that is compiled in (inspector/dist) must be what inspector/src builds: it is checked, built aside, and
# compared, byte by byte. Offline once the tools are there, about 10 s.
#
#   bash infra/ci/inspector.sh          compares
#   bash infra/ci/inspector.sh update   puts what was built into inspector/dist
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/ci/tools.sh

if grep -n '"resolved"' inspector/package-lock.json tests/inspector/package-lock.json; then
  echo "a lockfile names download addresses; see its folder's .npmrc" >&2
  exit 1
fi
if ! [[ -x "$DORMOUSE_INSPECTOR_BUILD/node_modules/.bin/vite" ]]; then
  echo "SKIPPED: there is nothing to build the inspector with, so inspector/dist is not compared with its source" >&2
  exit 0
fi
# In a copy outside the work tree, with the packages beside it.
rm -rf "$DORMOUSE_INSPECTOR_BUILD/src" "$DORMOUSE_INSPECTOR_BUILD/built"
cp -r inspector/src "$DORMOUSE_INSPECTOR_BUILD/src"
cd "$DORMOUSE_INSPECTOR_BUILD"
npm run --silent check
npx --no-install vite build --logLevel warn --outDir built
cd - >/dev/null
if [[ "${1:-}" == update ]]; then
  rm -rf inspector/dist
  cp -r "$DORMOUSE_INSPECTOR_BUILD/built" inspector/dist
elif ! diff -r inspector/dist "$DORMOUSE_INSPECTOR_BUILD/built" >/dev/null; then
  diff -rq inspector/dist "$DORMOUSE_INSPECTOR_BUILD/built" >&2 || true
  echo "inspector/dist is not what inspector/src builds: run bash infra/ci/inspector.sh update, and commit it" >&2
  exit 1
fi
echo "inspector: $(du -b --summarize --apparent-size inspector/dist/inspector | cut -f1) bytes, as built"
