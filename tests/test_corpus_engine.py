"""launch/corpus.sh prepare and clean: tasks of datatrove, where its environment is there."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests import conftest

SCRIPT = conftest.ROOT / 'launch' / 'corpus.sh'
CLEANING = pathlib.Path(os.environ.get('PLM_JAX_CLEANING_VENV') or conftest.ROOT / '.venv-cleaning')
# plays plm_jax's python: parts are files. SIGKILL ends the first try of part 0, and of part 1 datatrove's process
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
    (['clean', 'src', 'out'], 'clean needs --rules (gopher_quality, gopher_repetition, c4, fineweb), --against'),
    (['clean', 'empty', 'out', '--minhash'], 'name a folder of such files'),
    (['clean', 'src', 'src', '--minhash'], 'holds something else'),
    (['clean', 'src', 'out', '--minhash', '--text=body'], '--text=FIELD with one of text'),
  ],
)
def test_wrong_usage_is_explained(words: list[str], fix: str, tmp_path: pathlib.Path) -> None:
  write(tmp_path / 'src' / 'a.jsonl', '{"text": "a"}\n')
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


def sentence(number: int, words: int = 9) -> str:
  """Words that differ by letters, since datatrove reads all numbers as 0."""
  letters = str(number).translate(str.maketrans('0123456789', 'abcdefghij'))
  return ' '.join(f'{letters}{"klmnopqrstu"[n]}' for n in range(words)).capitalize() + '.'


def rows_in(folder: pathlib.Path) -> list[dict[str, str]]:
  return [json.loads(line) for file in sorted(folder.glob('*.jsonl')) for line in file.read_text().splitlines()]


def test_a_corpus_is_cleaned(engine: None, tmp_path: pathlib.Path) -> None:
  """Near duplicates and spans of three sentences; the same command resumes, another is refused."""
  pages = [' '.join(sentence(100 * page + n) for n in range(12)) for page in range(4)]
  shared = ' '.join(sentence(900 + n) for n in range(3))
  rows = [pages[0], f'{pages[1]} {shared}', f'{pages[0]} End.', f'{pages[2]} {shared} {sentence(999)}', pages[3]]
  for part in range(2):
    lines = [json.dumps({'text': text, 'url': 'x'}) for text in rows[part::2]]
    write(tmp_path / 'src' / f'{part}.jsonl', '\n'.join(lines) + '\n')
  words = ['clean', 'src', 'out', '--minhash', '--sentences', '--workers=2']
  code, said = corpus(tmp_path, *words)
  assert (code, 'to_remove 1' in said, 'removed_sentences 3' in said) == (0, True, True), said
  texts = rows_in(tmp_path / 'out')
  assert len(texts) == 4 and sum(shared in row['text'] for row in texts) == 1
  assert {*texts[0]} == {'text'} and sorted(len(row['text']) for row in texts)[0] == len(pages[0])
  (tmp_path / 'out' / 'logs' / 'sentences_3' / 'completions' / '00001').unlink()  # killed before its end
  (tmp_path / 'out' / '00001.jsonl').write_text('half')
  assert corpus(tmp_path, *words)[0] == 0
  assert texts == rows_in(tmp_path / 'out')
  code, said = corpus(tmp_path, *words[:4])
  assert (code, 'was made with another sentences' in said) == (2, True), said
