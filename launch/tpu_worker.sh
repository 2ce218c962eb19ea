#!/usr/bin/env bash
# Commands that launch/tpu_vm.sh runs on each host of a TPU:
#
#   bash launch/tpu_worker.sh install            install everything for TPUs into .venv
#   bash launch/tpu_worker.sh plm-jax ARGUMENTS  run plm-jax of .venv
#   bash launch/tpu_worker.sh start ARGUMENTS    start plm-jax train in the background, unless it is running
#   bash launch/tpu_worker.sh state              print 'running', 'ended CODE', 'lost' (killed with its host) or 'none'
#   bash launch/tpu_worker.sh stop               send SIGTERM and wait until the run ends
#   bash launch/tpu_worker.sh tail               print the output of the run, until Ctrl-C
#   bash launch/tpu_worker.sh last               print the last lines of that output
#
# Output and state of the run are in ~/plm_jax_run.
set -euo pipefail

root="$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)"
notes="$HOME/plm_jax_run"
python="$root/.venv/bin/python"

say() { printf '[%s] %s\n' "$(hostname)" "$*" >&2; }

# uv installs Python 3.12 if the host has only an older one than 3.11, as hosts with Ubuntu 22.04 do.
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
  PYTHON="$found" bash "$root/launch/setup.sh" "${PLM_JAX_EXTRA:-tpu}"
}

# Prints the process id of the run; fails if none is running.
process() {
  local id
  id="$(cat "$notes/process" 2>/dev/null)" || return 1
  # after a restart of the host, the id may belong to another process
  grep -q plm_jax "/proc/$id/cmdline" 2>/dev/null || return 1
  printf '%s\n' "$id"
}

start() {
  local id
  if id="$(process)"; then
    say "the run is already running (process $id)"
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
  say "started: ${id:-it ended at once with code $(cat "$notes/code" 2>/dev/null || echo unknown)}"
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

# A run saves in seconds to minutes; it is killed if it has not ended after ten minutes.
stop() {
  local id
  if id="$(process)"; then
    kill -TERM "$id" 2>/dev/null || true
    for _ in $(seq 600); do
      process >/dev/null || return 0
      sleep 1
    done
    say "still running after ten minutes: killed"
    kill -KILL "$id" 2>/dev/null || true
  fi
}

case ${1:-} in
  install) install ;;
  plm-jax)
    shift
    cd -- "$root"
    exec "$python" -m plm_jax "$@"
    ;;
  start)
    shift
    start "$@"
    ;;
  state) state ;;
  stop) stop ;;
  tail) exec tail -n 50 -F "$notes/output" ;;
  last) exec tail -n 20 "$notes/output" ;;
  *)
    say 'usage: bash launch/tpu_worker.sh COMMAND; commands: install, plm-jax, start, state, stop, tail, last'
    exit 2
    ;;
esac
