#!/usr/bin/env bash
# Train a first model, starting from Python 3.11 or newer:
#
#   bash launch/quickstart.sh [flags of plm-jax quickstart; --help lists them]
#   bash launch/quickstart.sh --released      fine-tune a published BERT, whose weights launch/released.sh fetches
#
# The first run creates .venv (launch/setup.sh). Paths are relative to the repository root.
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
bash "$root/launch/setup.sh"
for argument in "$@"; do
  if [[ $argument == --released ]]; then
    bash "$root/launch/released.sh" minilm
  fi
done
cd -- "$root"
exec "$root/.venv/bin/python" -m plm_jax quickstart "$@"
