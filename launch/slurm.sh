#!/usr/bin/env bash
# Trains under SLURM, from the root of the repository:
#
#   sbatch --nodes=2 launch/slurm.sh --config=experiments/bert/base.py --workdir=/shared/runs/bert
#
# One process per node, which uses all its devices; all see the run folder and the data. Flags of sbatch on the command
# line win over those below. When the time of the job is over the run saves, and the job waits in the queue to go on;
# after a failure of a node SLURM queues it again by itself. It is over when the run is finished, diverged or wrong.
# PLM_JAX_RESTARTS is how often it may go on (default 100), PYTHON another python than that of .venv.
#SBATCH --job-name=plm_jax
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --output=plm_jax_%j.txt
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@300
set -euo pipefail

if [[ -z ${SLURM_SUBMIT_DIR:-} ]]; then
  printf '[slurm] run this by sbatch: sbatch --nodes=2 %s --config=... --workdir=...\n' "$0" >&2
  exit 2
fi
root=$SLURM_SUBMIT_DIR  # sbatch runs a copy of this file, which lies elsewhere
python="${PYTHON:-$root/.venv/bin/python}"
cd -- "$root"

say() { printf '[slurm] %s\n' "$*" >&2; }

if [[ ! -x $python || ! -d plm_jax ]]; then
  say "no $python or no plm_jax in $root: submit from the root of the repository, after bash launch/setup.sh"
  exit 2
fi

# The flags say what plm_jax could ask SLURM for itself, and one thing more: of a step that jax detects, each task takes
# the device of its local number alone, which of one task per node is the first of all.
others=()
if [[ ${SLURM_NTASKS:-1} -gt 1 ]]; then
  first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"
  others=("--coordinator=$first:$((61440 + SLURM_JOB_ID % 4096))" "--processes=$SLURM_NTASKS")
fi

# SLURM sends SIGTERM to the tasks alone when the time is nearly over (--signal), and to this shell as well when the job
# is cancelled or preempted. It must not die of it before the tasks have saved.
cancelled=0
trap 'cancelled=1' TERM

# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 --label bash -c '
  exec "$@" ${SLURM_NTASKS:+$([ "$SLURM_NTASKS" = 1 ] || echo "--process=$SLURM_PROCID")}
' task "$python" -m plm_jax train "$@" ${others[@]+"${others[@]}"} &
step=$!
code=0
while kill -0 "$step" 2>/dev/null; do
  code=0
  wait "$step" || code=$?  # a signal ends the waiting, not the step
done

restarts="${SLURM_RESTART_COUNT:-0}"
case $code in
  3 | 130)
    if [[ $cancelled -eq 1 ]]; then
      say 'the job was cancelled or preempted; the run is saved'
    elif [[ $restarts -ge ${PLM_JAX_RESTARTS:-100} ]]; then
      say "the run is saved, and not finished after $restarts restarts (PLM_JAX_RESTARTS)"
    else
      say 'the run is saved, the job goes back into the queue'
      scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit "$code"
