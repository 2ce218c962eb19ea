#!/usr/bin/env bash
# Check lint, format, types and the Dockerfile; fail if one fails. `bash launch/lint.sh --fix` first fixes what it can.
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
bash "$root/launch/setup.sh" test
cd -- "$root"
python="$root/.venv/bin/python"
if [[ ${1:-} == --fix ]]; then
  "$python" -m ruff check --fix . || true
  "$python" -m ruff format .
fi
failed=0
"$python" -m ruff check . || failed=1
"$python" -m ruff format --check . || failed=1
"$python" -m mypy || failed=1
"$root/.venv/bin/hadolint" Dockerfile || failed=1
exit "$failed"
