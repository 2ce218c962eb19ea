"""launch/corpus.sh prepare and clean: tasks of datatrove, where its environment is there."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import conftest

SCRIPT = conftest.ROOT / 'launch' / 'corpus.sh'
CLEANING = pathlib.Path(os.environ.get('PLM_JAX_CLEANING_VENV') or conftest.ROOT / '.venv-cleaning')
# in place of plm_jax's python: parts are files. SIGKILL ends the first try of part 0, and of part 1 datatrove's process
PYTHON = """#!/usr/bin/env bash
[[ $1 == -m ]] || exec {python} "$@"
for word in "$@"; do
  case $word in
    --print_config) exit 0 ;;
    --bad) echo 'config.optim: a message' >&2; exit 2 ;;
    --shard=*) part=${{word#*=}} part=${{part%/*}} ;;
  esac
done
if [[ -z ${{part:-}} ]]; then cat '{folder}'/part_* >'{folder}/store'; echo joined; exit 0; fi
echo "$part" >>'{folder}/tries'
if [[ $(grep -cx "$part" '{folder}/tries') == 1 ]]; then
  printf half >"{folder}/part_$part"
  case $part in 0) kill -9 $$ ;; 1) kill -9 "$PPID"; exec sleep 9 ;; esac
fi
echo "tokens of $part" >"{folder}/part_$part"
"""
# a cluster of one node: a job is done when it is submitted
SLURM = {
  'sbatch': """#!/usr/bin/env bash
script=${@: -1} last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "${@: -1}")
printf '%s\\n' "$@" >>"$(dirname "$0")/asked"; grep '^#SBATCH' "$script" >>"$(dirname "$0")/asked"
for task in $(seq "$last" -1 0); do
  SLURM_ARRAY_TASK_ID=$task SLURM_NODELIST=here SLURM_JOB_ID=7 bash "$script" >&2
done
echo Submitted batch job 7
""",
  'srun': '#!/usr/bin/env bash\nshift 3\nexec "$@"\n',
  'scontrol': '#!/usr/bin/env bash\necho here\n',
}


def write(file: pathlib.Path, text: str) -> pathlib.Path:
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(text)
  file.chmod(0o755)
  return file


def corpus(folder: pathlib.Path, *words: str, **env: str) -> tuple[int, str]:
  python = write(folder / 'python', PYTHON.format(python=sys.executable, folder=folder))
  done = subprocess.run(
    ['bash', SCRIPT, words[0], f'--venv={CLEANING}', *words[1:]],
    env={**os.environ, 'PYTHON': str(python), **env}, cwd=folder, capture_output=True, text=True, check=False,
    timeout=300,
  )  # fmt: skip
  return done.returncode, done.stdout + done.stderr


@pytest.fixture
def engine() -> None:
  if not (CLEANING / 'bin' / 'python').exists():
    pytest.skip('no environment with datatrove: bash launch/corpus.sh prepare makes .venv-cleaning')


@pytest.mark.parametrize(
  ('words', 'fix'),
  [
    (['prepare'], 'prepare -- --config=FILE'),
    (['prepare', '--', '--config=x', '--shard=0/2'], '--shards=N before --'),
    (['prepare', '--workers=0', '--', '--config=x'], '1 or more'),
    (['prepare', '--executor=slurm', '--', '--config=x'], '--partition=NAME'),
    (['prepare', '--executor=slurm', '--partition=cpu', '--', '--config=x'], 'login node'),
    (['prepare', '--sbatch=account', '--', '--config=x'], '--sbatch=account=NAME'),
  ],
)
def test_wrong_usage_is_explained(words: list[str], fix: str, tmp_path: pathlib.Path) -> None:
  code, said = corpus(tmp_path, *words)
  assert (code, fix in said, (tmp_path / 'runs').exists()) == (2, True, False), said


def test_killed_tasks_are_made_again(engine: None, tmp_path: pathlib.Path) -> None:
  code, said = corpus(tmp_path, 'prepare', '--workers=2', '--shards=3', '--', '--config=x')
  assert (code, 'joined' in said, 'killed 1' in said) == (0, True, True), said
  assert (tmp_path / 'store').read_text() == ''.join(f'tokens of {part}\n' for part in range(3))
  assert sorted((tmp_path / 'tries').read_text().split()) == ['0', '0', '1', '1', '2']
  assert corpus(tmp_path, 'prepare', '--shards=3', '--', '--bad') == (2, 'config.optim: a message\n')


def test_a_job_array_of_slurm(engine: None, tmp_path: pathlib.Path) -> None:
  for name, text in SLURM.items():
    write(tmp_path / 'bin' / name, text)
  (tmp_path / 'tries').write_text('0\n1\n')  # nothing is killed
  flags = ['--executor=slurm', '--partition=cpu', '--shards=2', '--sbatch=account=us', '--', '--config=x']
  code, said = corpus(tmp_path, 'prepare', *flags, PATH=f'{tmp_path / "bin"}:{os.environ["PATH"]}')
  assert (code, 'submitted' in said) == (0, True), said
  assert (tmp_path / 'store').read_text() == ''.join(f'tokens of {part}\n' for part in range(2))
  asked = (tmp_path / 'bin' / 'asked').read_text()
  assert {'#SBATCH --array=0-1%16', '#SBATCH --account=us', '--dependency=afterok:7'} <= {*asked.splitlines()}, asked
