#!/usr/bin/env bash
# Builds the documentation site into docs/_build/html. Warnings are errors.
#
#   bash launch/docs.sh [--serve [PORT]] [WORDS for sphinx-build ...]
#
# --serve shows the pages at http://localhost:8000, or at another port, until Ctrl-C.
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
serve=''
if [[ ${1:-} == --serve ]]; then
  shift
  serve=8000
  if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    serve="$1"
    shift
  fi
fi
bash "$root/launch/setup.sh" docs
python="$root/.venv/bin/python"
if ! JAX_PLATFORMS=cpu "$python" -m sphinx -W --keep-going -q -a -E -b html -d "$root/docs/_build/doctrees" "$@" \
  "$root/docs" "$root/docs/_build/html"; then
  echo 'Repeat with: bash launch/docs.sh'
  exit 1
fi
echo "Documentation: $root/docs/_build/html/index.html"
if [[ -n $serve ]]; then
  exec "$python" -m http.server --bind 127.0.0.1 --directory "$root/docs/_build/html" "$serve"
fi
