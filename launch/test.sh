#!/usr/bin/env bash
# Run the tests, on the CPU unless JAX_PLATFORMS is set:
#
#   bash launch/test.sh                       all except the long ones
#   bash launch/test.sh --all                 all
#   bash launch/test.sh tests/models -x       any pytest arguments; paths are relative to the repository root
#   bash launch/test.sh -n 0 --pdb            in one process (default: two)
#
# The first run creates .venv (launch/setup.sh).
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
for argument in "$@"; do
  shift
  if [[ $argument == --all ]]; then
    argument=--slow=all
  fi
  set -- "$@" "$argument"
done
bash "$root/launch/setup.sh" test scores
cd -- "$root"
exec "$root/.venv/bin/python" -m pytest --numprocesses=2 --dist=loadfile "$@"
