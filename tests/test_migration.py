"""The two pages of `experiments/`: they name every folder and table, and every command and key in them is one."""

import ast
import contextlib
import io
import json
import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from plm_jax.cli import command
from plm_jax.config import signatures
from plm_jax.training.before.model_from import expand

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = (ROOT / 'experiments' / 'MIGRATION.md').read_text(encoding='utf-8')
INDEX = (ROOT / 'experiments' / 'README.md').read_text(encoding='utf-8')
MODEL = ROOT / 'tests' / 'fixtures' / 'bert_mlm' / 'run'
COMMANDS = [
  shlex.split(block.replace('\\\n', ' ').replace('FOLDER', str(MODEL)))[2:]
  for block in re.findall(r'^```\n(plm-jax train .*?)^```', PAGE, re.MULTILINE | re.DOTALL)
]
IDS = [next(word for word in words if word.startswith('--workdir=')).rpartition('/')[2] for words in COMMANDS]
KEY = re.compile(r'`((?:data|eval|optim|objective|adapter|model|vocab|execution|sharding)\.[\w.]+)')


def resolved(words: list[str]) -> dict[str, Any]:
  """What a command prints with `--print_config`."""
  with contextlib.redirect_stdout(io.StringIO()) as out:
    command.parse(command.command('train', ''), [*words, '--print_config'], expand=expand)
  return json.loads(out.getvalue())


def paths(block: Any, above: str = '') -> Iterator[str]:
  """The dotted keys of a config, of its blocks too."""
  inside = dict(enumerate(block)) if isinstance(block, list) else block if isinstance(block, dict) else {}
  for name, value in inside.items():
    yield f'{above}{name}'
    yield from paths(value, f'{above}{name}.')


def told_keys() -> set[str]:
  """Our keys in the last cells of the tables and in the text."""
  lines = re.sub(r'^```.*?^```', '', PAGE, flags=re.MULTILINE | re.DOTALL).splitlines()
  ours = [line.rstrip('| ').rpartition(' | ')[2] if line.startswith('|') else line for line in lines]
  return {key for line in ours for key in KEY.findall(line)}


def test_the_page_has_a_command_for_each_kind_of_run() -> None:
  assert len(COMMANDS) == 10
  scripts = 'run_mlm_flax', 'run_clm_flax', 'run_t5_mlm_flax', 'run_bart_dlm_flax', 'run_flax_glue'
  for name in (*scripts, 'run_summarization_flax', 'fairseq-hydra-train', 'fairseq-train', 'finetune.gin'):
    assert name in PAGE


@pytest.mark.parametrize('words', COMMANDS, ids=IDS)
def test_commands_resolve_to_what_they_say(words: list[str]) -> None:
  values = resolved(words)
  for word in words:
    key, _, text = word.removeprefix('--config.').partition('=')
    if not word.startswith('--config.') or key == 'model.from':
      continue
    value: Any = values
    for part in key.split('.'):
      value = value[int(part)] if isinstance(value, list) else value[part]
    assert str(value) == text or value == json.loads(json.dumps(ast.literal_eval(text))), key


def test_every_key_that_is_told_is_a_key() -> None:
  known = {'model.from', 'model.overrides.dropout', 'model.overrides.attention_dropout'}
  for words in COMMANDS:
    known |= set(paths(resolved(words)))
  assert told_keys() - known == set()
  assert len(told_keys()) > 40


def test_the_index_names_every_folder_and_table() -> None:
  rows = set(re.findall(r'^\| `([^`]+)`', INDEX, re.MULTILINE))
  folders = {f'{file.parent.name}/' for file in signatures.experiment_files()}
  tables = {f'tables/{file.name}' for file in (ROOT / 'experiments' / 'tables').glob('[!_]*.py')}
  assert rows == folders | tables
  for file in re.findall(r'`(\w+/\w+\.py)`', INDEX):
    assert (ROOT / 'experiments' / file).is_file(), file


@pytest.mark.parametrize(
  'table', sorted((ROOT / 'experiments' / 'tables').glob('[!_]*.py')), ids=lambda file: file.stem
)
def test_the_index_names_the_configs_of_each_table(table: pathlib.Path) -> None:
  row = next((line for line in INDEX.splitlines() if line.startswith(f'| `tables/{table.name}`')), '')
  assert row, f'experiments/README.md needs a row for `tables/{table.name}`'
  assert set(re.findall(r'`(\w+/\w+\.py)`', row)) - {f'tables/{table.name}'} == set(
    re.findall(r"'(\w+/\w+\.py)'", table.read_text(encoding='utf-8'))
  )
