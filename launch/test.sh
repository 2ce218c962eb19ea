#!/usr/bin/env bash
# Runs the tests, on the CPU unless JAX_PLATFORMS says otherwise:
#
#   bash launch/test.sh                       all but the long ones
#   bash launch/test.sh --all                 all
#   bash launch/test.sh tests/models -x       any pytest arguments; paths are relative to the repository root
#   bash launch/test.sh -n 0 --pdb            in one process; by default two processes share the files
#
# The first run makes .venv (launch/setup.sh).
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
