#!/usr/bin/env bash
# From a bare Python 3.11 or newer to a first trained model:
#
#   bash launch/quickstart.sh [options of plm-jax quickstart; --help lists them]
#
# The first run makes .venv (launch/setup.sh). Paths are relative to the repository root.
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
bash "$root/launch/setup.sh"
cd -- "$root"
exec "$root/.venv/bin/python" -m plm_jax quickstart "$@"
