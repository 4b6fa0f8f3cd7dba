#!/usr/bin/env bash
# The template: as SAM reads it, as CloudFormation will see it, and by the rules of this stack. Offline, about 30 s.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/ci/tools.sh
export SAM_CLI_TELEMETRY=0 AWS_DEFAULT_REGION=us-east-1

"$DORMOUSE_SAM/sam" validate --lint --template template.yaml
"$DORMOUSE_SAM/python" infra/lint.py template.yaml
"$DORMOUSE_SAM/python" tests/lint_test.py
