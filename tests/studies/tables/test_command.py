"""The command `tables`: what it needs, what it says before anything is loaded, and what it counts."""

import json
import pathlib
import re
import subprocess
import sys
import types

import pytest

from plm_jax import config
from plm_jax.commands import params, tables
from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import cells, counting, file, making, needs, render, runs
from plm_jax.text import byte_bpe
from tests import conftest

TABLE = """
def get_table(scale):
  made = dict(config='experiments/small/pretrain.py:bert', published=dict(score=90.0))
  score = dict(metric='validation/loss', of='pretraining')
  rows = dict(one=made, two=dict(made, keys={'optim.rate': 5e-4}), three=dict(made, keys={'data.length': 32}))
  return dict(title='A', paper='B', mark='B', rows=rows, columns=dict(score=score))
"""


@pytest.fixture
def mine(tmp_path):
  (tmp_path / 'mine.py').write_text(TABLE)
  return str(tmp_path / 'mine.py')


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (['no_such.py', '--workdir=x'], 'no_such.py'),
    (['experiments/tables/bert_5.py', '--workdir=x', '--scale=big'], "'big'"),
    (['experiments/tables/bert_5.py'], '--workdir=DIR'),
    (['experiments/tables/bert_5.py', '--print'], '--out=DIR'),
  ],
)
def test_a_mistake_is_told_before_jax_is_loaded(words, said):
  code = (
    'import sys\nfrom plm_jax.commands import tables\nfrom plm_jax.cli import command\n'
    f'code = command.run(lambda: tables.main({words!r}))\n'
    "assert not {'jax', 'flax', 'numpy'} & set(sys.modules)\nsys.exit(code)"
  )
  done = subprocess.run([sys.executable, '-c', code], cwd=conftest.ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 2, done.stderr
  assert said in done.stderr


def test_what_needs_the_runs_asks_for_their_folder(mine):
  for flag in ([], ['--commands']):
    with pytest.raises(ConfigError, match='--workdir=DIR'):
      tables.main([mine, *flag])


@pytest.mark.parametrize('word', ['a b', "it's", 'a\nb', 'it\'s\n a \\n $HOME `date` "x"', ''])
def test_a_command_is_one_line_that_bash_reads_again(word):
  line = f'printf %s {making._quoted(word)}'
  assert '\n' not in line
  assert subprocess.run(['bash', '-c', line], capture_output=True, text=True, check=True).stdout == word


def test_cells_are_printed_without_the_runs(mine, tmp_path, capsys):
  out = tmp_path / 'out'
  out.mkdir()
  with pytest.raises(ConfigError, match=r'(?s)--workdir=DIR.*--out=DIR.*out'):
    tables.main([mine, '--print', f'--out={out}'])
  table = file.read(mine, 'tiny')
  digest = runs.plan(table, runs.Places(tmp_path))[runs.Cell('one', 'score')][0][0].digest
  kept = {'scale': 'tiny', 'cells': {'one': {'score': [[digest]]}}}
  kept['runs'] = {digest: {'name': 'a', 'metrics': {'validation/loss': 1.25}}}
  cells.write(out / 'cells.json', {**cells.EMPTY, **kept})
  with pytest.raises(ConfigError, match='--scale=tiny'):
    tables.main([mine, '--print', f'--out={out}'])
  assert tables.main([mine, '--print', f'--out={out}', '--scale=tiny']) == 0
  printed = capsys.readouterr().out
  assert '| one | 90 | 1.25' in printed
  assert printed.strip() == render.markdown(table, cells.read(out / 'cells.json')).strip()


def test_runs_that_differ_in_nothing_that_is_counted_are_counted_once(mine, tmp_path, monkeypatch, capsys):
  """Three rows: the rate changes no model, the length changes the operations. One process counts all of them."""
  asked = []

  def ask(_, questions):
    lengths = [one['settings']['data']['length'] for one in questions]
    asked.append(lengths)
    return [{'parameters': 5, 'gflop_per_row': 0.25 * length} for length in lengths]

  monkeypatch.setattr(counting.child, 'answers', ask)
  assert tables.main([mine, '--cost', '--scale=small']) == 0
  (lengths,) = asked
  assert len(lengths) == 2 and 32 in lengths
  assert 'No run of this table' in capsys.readouterr().out
  plan = runs.plan(file.read(mine, 'small'), runs.Places(tmp_path))
  counts = counting.Counts()
  one, two, three = runs.needed(plan)
  assert counts.of(one) == counts.of(two) == {'parameters': 5, 'flops': 0.25e9 * one.settings['data']['length']}
  assert counts.of(three)['flops'] == 8e9


def test_costs_are_shown_at_each_scale(mine, monkeypatch, capsys):
  monkeypatch.setattr(
    counting.child, 'answers', lambda _, asked: [{'parameters': 5, 'gflop_per_row': 1.0}] * len(asked)
  )
  assert tables.main([mine, '--cost']) == 0
  out = capsys.readouterr().out
  assert all(f'A: cost, scale {scale}' in out for scale in file.SCALES)


def test_a_vocabulary_that_is_not_made_has_the_size_that_its_config_says(tmp_path, monkeypatch):
  (tmp_path / 'experiments').mkdir()
  monkeypatch.chdir(tmp_path)  # where no vocabulary is
  run = runs._run('experiments/electra/small.py', {'seed': 0}, label='it')
  assert counting.Counts().of(run)['parameters'] > 13e6


def test_the_process_that_counts_answers_for_each_and_says_why_not(tmp_path, capsys):
  """The same numbers as the command `params`, which counts one config."""
  byte_bpe.train(['some words of a text'], size=270).save(tmp_path / 'vocab')
  target = 'experiments/bert/base.py:quick'
  sound, broken = (
    runs._run(target, {'vocab.path': str(path), 'seed': 0}, label='it') for path in (tmp_path / 'vocab', '/nowhere')
  )
  counts = counting.Counts()
  counts.add([sound, broken])
  with pytest.raises(ConfigError, match=r'(?s)cannot be counted.*/nowhere'):
    counts.of(broken)
  assert params.main(['--json', f'--config={target}', f'--config.vocab.path={tmp_path / "vocab"}']) == 0
  (alone,) = json.loads(capsys.readouterr().out)
  assert counts.of(sound) == {'parameters': alone['parameters'], 'flops': round(1e9 * alone['gflop_per_row'])}


def test_what_runs_lack_is_told_before_the_first(mine, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(making, 'make', lambda *given, **others: pytest.fail('a run began'))
  with pytest.raises(ConfigError) as caught:
    tables.main([mine, f'--workdir={tmp_path / "work"}'])
  said = str(caught.value)
  assert said.count('vocab.path: ') == 1 and 'experiments/small' in said
  assert '--source=runs/data/english --name=byte_bpe --size=8000 --out=runs/vocab/small' in said
  assert said.count('data.path: ') == 1  # also that of the evaluation
  assert '--corpus=DIR' in said


def test_an_evaluation_that_no_run_has_is_refused_before_the_first(mine, tmp_path, monkeypatch):
  monkeypatch.setattr(making, 'make', lambda *given, **others: pytest.fail('a run began'))
  path = pathlib.Path(mine)
  path.write_text(path.read_text().replace('validation/loss', 'validaton/loss'))
  with pytest.raises(ConfigError, match=r"'validaton/loss' of .*'validaton'.*'validation'"):
    tables.main([mine, f'--workdir={tmp_path / "work"}'])


def test_a_metric_that_an_evaluation_does_not_give_is_refused_before_the_first_run(mine, data, tmp_path, monkeypatch):
  """A column of fine-tuning and one of pre-training; the vocabulary of the fine-tuning is that of the other run."""
  monkeypatch.setattr(making, 'make', lambda *given, **others: pytest.fail('a run began'))
  changed = f"keys={{'vocab.path': '{data}/vocab'}}"
  tuned = "dict(metric='validation/acuracy', configs={'bert': 'experiments/bert/glue.py:sst2'})"
  text = TABLE.replace('published=', f"family='bert', {changed}, published=").replace(', two=', ') #')
  text = text.replace("metric='validation/loss'", "metric='validation/perplexty'").replace(
    'score=score', f'score=score, task={tuned}'
  )
  pathlib.Path(mine).write_text(text)
  with pytest.raises(ConfigError) as caught:
    tables.main([mine, f'--workdir={tmp_path / "work"}', f'--corpus={data / "corpus"}'])
  first, second = str(caught.value).splitlines()
  assert re.search("column 'score': experiments/small/pretrain.py:bert: .*'perplexty'.*'val", first)
  assert re.search("column 'task': experiments/bert/glue.py:sst2: .*'acuracy'.*'validation'", second)
  assert 'accuracy, loss' in second


def test_the_head_of_a_table_names_what_its_runs_lack(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'text').mkdir()
  for split in ('train', 'validation'):
    (tmp_path / 'text' / f'{split}.txt').write_text('a text\n')
  command = 'plm-jax vocab train --source=text --name=byte_bpe --size=700 --out=mine makes\nthe vocabulary.'
  keys = "dict(made, keys={'vocab.path': 'mine'})"
  table = TABLE.replace('one=made', f'one={keys}').replace(', two=', ') #')
  (tmp_path / 'mine.py').write_text(f'"""A table.\n\n{command}\n"""\n{table}')
  with pytest.raises(ConfigError) as caught:
    tables.main(['mine.py', '--workdir=work', '--corpus=text'])
  (said, made) = str(caught.value).splitlines()
  assert said.startswith('vocab.path: ') and 'mine.py' in said
  assert made.split()[-4:] == ['--source=text', '--name=byte_bpe', '--size=700', '--out=mine']


def test_what_is_there_is_not_asked_for(data, tmp_path, monkeypatch):
  (tmp_path / 'mine.py').write_text(TABLE)
  keys = f"dict(made, keys={{'vocab.path': '{data}/vocab'}})"
  (tmp_path / 'mine.py').write_text(TABLE.replace('one=made', f'one={keys}').replace(', two=', ') #'))
  began = []
  monkeypatch.setattr(making, 'make', lambda run, *given, **others: began.append(run) or 'no')
  asked = [str(tmp_path / 'mine.py'), f'--workdir={tmp_path / "work"}', f'--corpus={data / "corpus"}']
  assert tables.main(asked) == 1  # no run of it was made
  assert len(began) == 1


def test_an_optional_split_that_the_data_lack_is_not_asked_for(tmp_path):
  """MNLI has two validation splits, of which a folder may have one."""
  for split in ('train', 'validation_matched'):
    (tmp_path / f'{split}.jsonl').write_text('{"premise": "a", "hypothesis": "b", "label": 1}\n')
  words = config.load(f'{conftest.ROOT}/experiments/bert/glue.py:mnli')
  settings = config.resolve({**words, 'data': {**words['data'], 'path': str(tmp_path)}})
  run = types.SimpleNamespace(source='one', names_its_source=False, settings=settings, weights='')
  assert 'validation_mismatched' in settings['eval'] and list(needs._lacking(run, 'x.py')) == []
  (tmp_path / 'validation_matched.jsonl').unlink()
  assert len(list(needs._lacking(run, 'x.py'))) == 1  # the one that judges


def test_known_tables_are_named_as_they_are_typed(tmp_path, monkeypatch):
  monkeypatch.chdir(conftest.ROOT)
  with pytest.raises(ConfigError) as caught:
    file.read('experiments/tables/bert5.py', 'small')
  assert "Did you mean 'experiments/tables/bert_5.py'" in str(caught.value)
  assert f'{conftest.ROOT}/' not in str(caught.value)
  monkeypatch.chdir(tmp_path)
  assert str(conftest.ROOT / 'experiments' / 'tables' / 'bert_5.py') in file.table_files()
