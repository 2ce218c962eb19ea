#!/usr/bin/env bash
# What launch/tpu_vm.sh asks of each host of a TPU:
#
#   bash launch/tpu_worker.sh install            makes .venv with everything for TPUs
#   bash launch/tpu_worker.sh python ARGUMENTS   runs the python of .venv
#   bash launch/tpu_worker.sh start ARGUMENTS    plm-jax train in the background, unless it runs
#   bash launch/tpu_worker.sh state              'running', 'ended CODE', 'lost' (killed with its host) or 'none'
#   bash launch/tpu_worker.sh stop               SIGTERM, and waits until it is gone
#   bash launch/tpu_worker.sh tail               prints the output of the run, until Ctrl-C
#
# Output and state of the run are in ~/plm_jax_run.
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
notes="$HOME/plm_jax_run"
python="$root/.venv/bin/python"

say() { printf '[%s] %s\n' "$(hostname)" "$*" >&2; }

# Python 3.11 or newer is made by uv where the host has only an older one, as hosts with Ubuntu 22.04 have.
install() {
  local found=''
  for candidate in python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      found="$(command -v "$candidate")"
      break
    fi
  done
  if [[ -z $found && ! -x $python ]]; then
    python3 -m pip install --quiet --user uv
    python3 -m uv python install --quiet 3.12
    found="$(python3 -m uv python find 3.12)"
  fi
  PYTHON="$found" bash "$root/launch/setup.sh" tpu
}

# The id of the process of the run; fails where none runs.
process() {
  local id
  id="$(cat "$notes/process" 2>/dev/null)" || return 1
  # an id may belong to another process by now, after a restart of the host
  grep -q plm_jax "/proc/$id/cmdline" 2>/dev/null || return 1
  printf '%s\n' "$id"
}

start() {
  local id
  if id="$(process)"; then
    say "the run is going on (process $id)"
    return
  fi
  mkdir -p -- "$notes"
  rm -f -- "$notes/code"
  cd -- "$root"
  # shellcheck disable=SC2016
  setsid nohup bash -c '
    notes=$1 python=$2
    shift 2
    "$python" -m plm_jax train "$@" &
    echo "$!" >"$notes/process"
    wait "$!"
    echo "$?" >"$notes/code"
  ' run "$notes" "$python" "$@" >>"$notes/output" 2>&1 </dev/null &
  for _ in $(seq 100); do
    if id="$(process)" || [[ -e $notes/code ]]; then
      break
    fi
    sleep 0.1
  done
  say "started: ${id:-it ended at once, with code $(cat "$notes/code" 2>/dev/null || echo unknown)}"
}

state() {
  if process >/dev/null; then
    echo running
  elif [[ -s $notes/code ]]; then
    echo "ended $(cat "$notes/code")"
  elif [[ -e $notes/process ]]; then
    echo lost
  else
    echo none
  fi
}

# A run saves in seconds to minutes; one that has not ended after ten minutes is killed.
stop() {
  local id
  if id="$(process)"; then
    kill -TERM "$id" 2>/dev/null || true
    for _ in $(seq 600); do
      process >/dev/null || return 0
      sleep 1
    done
    say "still there after ten minutes: killed"
    kill -KILL "$id" 2>/dev/null || true
  fi
}

case ${1:-} in
  install) install ;;
  python)
    shift
    cd -- "$root"
    exec "$python" "$@"
    ;;
  start)
    shift
    start "$@"
    ;;
  state) state ;;
  stop) stop ;;
  tail) exec tail -n 50 -F "$notes/output" ;;
  *)
    say 'install, python, start, state, stop or tail?'
    exit 2
    ;;
esac
