#!/usr/bin/env bash
# Lint, format and types: runs all three and fails if one fails. `bash launch/lint.sh --fix` repairs what it can first.
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
exit "$failed"
