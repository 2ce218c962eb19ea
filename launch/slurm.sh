#!/usr/bin/env bash
# Train under SLURM, from the root of the repository:
#
#   bash launch/slurm.sh --nodes=2 --gpus-per-node=8 -- --config=experiments/bert/base.py --workdir=/shared/runs/bert
#   sbatch --nodes=2 launch/slurm.sh --config=experiments/bert/base.py --workdir=/shared/runs/bert
#
# The first form submits two jobs: one without accelerators, which makes vocabulary and token stores (plm-jax prepare),
# and the run, which waits for it. Words before -- are flags of sbatch for the run, PLM_JAX_PREPARE_FLAGS those for the
# other job, such as '--partition=cpu --cpus-per-task=16'. The second form submits the run alone. --shared=DIR or
# --shared=gs://BUCKET/FOLDER is where nodes without a common data.cache copy what was prepared from; with --in_place they
# read tokens there. Compiled programs are stored in the folder `compiled` next to that of the run, unless
# --compile_cache names another.
#
# Each node runs one process on all its devices; all nodes share the run folder and the data. Flags of sbatch on the
# command line override those below. At the time limit the run saves, and the job is queued again to resume; after a
# node failure SLURM queues it itself. The job ends when the run is finished, diverges or is wrong. PLM_JAX_RESTARTS is
# the maximum number of restarts (default 100), PYTHON another interpreter than that of .venv.
#SBATCH --job-name=plm_jax
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=24:00:00
#SBATCH --output=plm_jax_%j.txt
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@300
set -euo pipefail

flags=()
for word in "$@"; do
  [[ $word != -- ]] || break
  flags+=("$word")
done
if [[ ${#flags[@]} -lt $# ]]; then
  shift $((${#flags[@]} + 1))
  # shellcheck disable=SC2086
  job="$(sbatch --parsable --nodes=1 ${PLM_JAX_PREPARE_FLAGS:-} --export=ALL,PLM_JAX_PREPARE=1 "$0" "$@")"
  job=${job%%;*}  # the cluster may follow
  printf '[slurm] job %s prepares, and the run waits for it\n' "$job" >&2
  exec sbatch ${flags[@]+"${flags[@]}"} --dependency="afterok:$job" --kill-on-invalid-dep=yes "$0" "$@"
fi
if [[ -z ${SLURM_SUBMIT_DIR:-} ]]; then
  printf '[slurm] run this by sbatch: sbatch --nodes=2 %s --config=... --workdir=...\n' "$0" >&2
  exit 2
fi
root=$SLURM_SUBMIT_DIR  # sbatch runs a copy of this file in another folder
python="${PYTHON:-$root/.venv/bin/python}"
cd -- "$root"

say() { printf '[slurm] %s\n' "$*" >&2; }

if [[ ! -x $python || ! -d plm_jax ]]; then
  say "no $python or no plm_jax in $root: run bash launch/setup.sh, then submit from the root of the repository"
  exit 2
fi

shared=() config=() words=()
workdir='' cache=''
for word in "$@"; do
  case $word in
    --shared=* | --in_place) shared+=("$word") ;;
    *)
      words+=("$word")
      case $word in
        --config=* | --config.*) config+=("$word") ;;
        --workdir=*) workdir=${word#*=} ;;
        --compile_cache=*) cache=$word ;;
      esac
      ;;
  esac
done
if [[ -n ${PLM_JAX_PREPARE:-} ]]; then
  exec "$python" -m plm_jax prepare ${config[@]+"${config[@]}"} ${shared[@]+"${shared[@]}"}
fi
if [[ -n $workdir && -z $cache ]]; then
  workdir=${workdir%/}
  case $workdir in
    */*) words+=("--compile_cache=${workdir%/*}/compiled") ;;
    *) words+=(--compile_cache=compiled) ;;
  esac
fi

# plm_jax could detect these flags under SLURM. But then jax gives each task only the device of its local index, which
# with one task per node is the first device.
others=()
if [[ ${SLURM_NTASKS:-1} -gt 1 ]]; then
  first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"
  others=("--coordinator=$first:$((61440 + SLURM_JOB_ID % 4096))" "--processes=$SLURM_NTASKS")
fi

# Near the time limit SLURM sends SIGTERM only to the tasks (--signal); on cancellation or preemption also to this shell,
# which must not end before the tasks have saved.
cancelled=0
trap 'cancelled=1' TERM

[[ ${#shared[@]} -eq 0 ]] || # each node copies what was prepared
  srun --kill-on-bad-exit=1 --label "$python" -m plm_jax prepare ${config[@]+"${config[@]}"} "${shared[@]}"
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 --label bash -c '
  exec "$@" ${SLURM_NTASKS:+$([ "$SLURM_NTASKS" = 1 ] || echo "--process=$SLURM_PROCID")}
' task "$python" -m plm_jax train ${words[@]+"${words[@]}"} ${others[@]+"${others[@]}"} &
step=$!
code=0
while kill -0 "$step" 2>/dev/null; do
  code=0
  wait "$step" || code=$?  # a signal ends wait, not the step
done

restarts="${SLURM_RESTART_COUNT:-0}"
case $code in
  3 | 130)
    if [[ $cancelled -eq 1 ]]; then
      say 'the job was cancelled or preempted; the run is saved'
    elif [[ $restarts -ge ${PLM_JAX_RESTARTS:-100} ]]; then
      say "the run is saved, but not finished after $restarts restarts (PLM_JAX_RESTARTS)"
    else
      say 'the run is saved, and the job is queued again'
      scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit "$code"
