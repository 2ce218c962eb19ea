"""Rows of published weights: what is missing, what is refused, and which numbers are compared with published ones."""

import dataclasses
import gzip
import json
import shlex
import sys
import types

import numpy as np
import pytest

from experiments.tables import published_gpt2
from plm_jax.commands import evaluate, tables
from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import cells, file, making, picture, published, render, run_folders, runs
from plm_jax.studies.tables.intervals import Measured
from tests.studies.tables import standins

NAMES = ('glue', 'squad', 'gpt2', 'llama', 'summaries', 't5', 'elmo', 'blimp', 'sts')
FILES = [f'experiments/tables/published_{name}.py' for name in NAMES]
TABLE = """
SCALES = ('published',)
def get_table(scale):
  asked = dict(of='evaluation', metric='test/word_accuracy', folder='lambada', times=100, whole=WHOLE)
  asked |= dict(configs=dict(gpt='experiments/gpt/zero_shot.py:lambada'), keys={KEYS})
  tuned = dict(metric='validation/accuracy', configs=dict(gpt='experiments/bert/glue.py:sst2'), fetch='fetch {data}')
  numbers = dict(asked=45.9, tuned=91.25)
  row = dict(folder='gpt2', id='openai-community/gpt2', model='gpt2', family='gpt', published=numbers)
  columns = dict(asked=asked, tuned=tuned)
  return dict(title='T', paper='P', mark='A', rows={'gpt2': row}, columns=columns, tuning_seeds=3)
"""
KEYS = """
  'eval': dict(test=dict(data=dict(split='test'))), 'best': None, 'data.split': 'test', 'data.length': 64,
  'data.path': 'nowhere', 'data.cache': 'CACHE',
"""


@pytest.fixture
def mine(tmp_path):
  """A table of a GPT-2 with LAMBADA, whose words are here, and SST-2, which is not; one folder of weights."""
  pytest.importorskip('transformers')
  text = TABLE.replace('{KEYS}', f'{{{KEYS.replace("CACHE", str(tmp_path / "cache"))}}}').replace('WHOLE', '9')
  (tmp_path / 'mine.py').write_text(text)
  (tmp_path / 'data' / 'lambada').mkdir(parents=True)
  rows = [{'passage': f'Who sold the {word}? He sold the clock.'} for word in ('lantern', 'clock', 'harbour')]
  (tmp_path / 'data' / 'lambada' / 'test.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  standins.make(tmp_path / 'weights', 'gpt2')
  return tmp_path


def found(mine, **changes):
  table = file.read(str(mine / 'mine.py'), 'published')
  rows = {name: dataclasses.replace(row, **changes) for name, row in table.rows.items()}
  places = runs.Places(mine / 'work', str(mine / 'data'), weights=str(mine / 'weights'))
  return published.found(dataclasses.replace(table, rows=rows), places, head='mine.py'), places


def argv(mine, *flags):
  return [
    str(mine / 'mine.py'),
    '--scale=published',
    f'--weights={mine / "weights"}',
    f'--data={mine / "data"}',
    *flags,
  ]


@pytest.mark.parametrize('name', FILES)
def test_what_is_missing_is_listed_with_the_command_that_fetches_it(name, tmp_path, capsys):
  """No folder is here: each row has its command, numbers that cannot be met are in parentheses, and nothing runs."""
  (tmp_path / 'weights').mkdir()
  flags = ['--scale=published', f'--weights={tmp_path / "weights"}', f'--workdir={tmp_path / "work"}', '--data=nowhere']
  assert tables.main([name, *flags, '--print']) == 0
  printed, table = capsys.readouterr().out, file.read(name, 'published')
  for row in table.rows.values():
    place = tmp_path / 'weights' / row.folder
    assert f'{place} is missing. Run: {row.fetch.format(place=place) or f"hf download {row.id}"}' in printed
    assert 'DIR..' not in printed
    assert row.published or row.limits or not row.folder.startswith('bert')
  with pytest.raises(ConfigError, match=r'nothing to run\..*is missing\. Run: .*--print lists'):
    tables.main([name, *flags])


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    (dict(model='bert'), "model_type 'gpt2', and row 'gpt2' is a 'bert'. Move it away and run: hf download openai"),
    (dict(sha256='0' * 64), "is not 000000000000 of row 'gpt2': another version\\? Move it away and run"),
  ],
)
def test_a_folder_of_another_kind_is_refused(mine, changes, said):
  with pytest.raises(ConfigError, match=said) as caught:
    found(mine, **changes)
  assert len(str(caught.value)) < 400


def test_names_that_are_misspelt_have_the_nearest(mine):
  table, _ = found(mine, folder='gtp2')
  assert "weights/gtp2 is missing. Did you mean 'gpt2'? Run: hf download" in table.rows['gpt2'].empty
  with pytest.raises(ConfigError, match=r"no row 'roberta-bas'\. Nearest: roberta-base"):
    file.read('experiments/tables/published_glue.py:roberta-bas', 'published')
  with pytest.raises(ConfigError, match=r"no scale 'small': add --scale=published"):
    file.read('experiments/tables/published_glue.py', 'small')
  with pytest.raises(ConfigError, match=r"no scale 'published': add --scale=tiny"):
    file.read('experiments/tables/bert_6.py', 'published')
  for flags, message in (
    (['--scale=published'], 'needs --weights=DIR: add the folder'),
    (['--weights=x'], r'--weights is for --scale=published, not small: write that, or remove --weights\.'),
    (['--weights=x', '--scale=publishd'], 'not publishd: write that, or'),
  ):
    with pytest.raises(ConfigError, match=message):
      tables.main([str(mine / 'mine.py'), *flags])
  with pytest.raises(ConfigError, match=r"no such table file\. Did you mean '.*published_gpt2\.py'") as caught:
    tables.main(['experiments/tables/published_gpt.py', '--scale=published', '--weights=x'])
  assert len(str(caught.value)) <= 240
  with pytest.raises(ConfigError, match=r'there is no such folder'):
    tables.main([str(mine / 'mine.py'), '--scale=published', f'--weights={mine / "no"}', f'--workdir={mine / "w"}'])


def test_commands_that_fetch_make_their_folder(tmp_path, monkeypatch):
  command = published_gpt2.RAW.format(data=tmp_path / 'runs' / 'data')
  fake = types.SimpleNamespace(load_dataset=lambda *names, split: {'text': ['a', 'b']})
  monkeypatch.setitem(sys.modules, 'datasets', fake)
  exec(shlex.split(command)[2])  # noqa: S102 (the command of our own message)
  assert (tmp_path / 'runs/data/wikitext_2_raw/test.txt').read_text() == 'a\n\nb'


def test_other_weights_are_another_run(mine):
  def digest():
    table, places = found(mine)
    return runs.plan(table, places)[runs.Cell('gpt2', 'asked')][0][0].digest

  first, weights = digest(), mine / 'weights' / 'gpt2' / 'model.safetensors'
  assert digest() == first
  weights.write_bytes(weights.read_bytes()[:-4] + b'\0\1\2\3')
  assert digest() != first


def test_commands_name_the_folder(mine):
  table, places = found(mine)
  plan = runs.plan(table, places)
  (asked,) = plan[runs.Cell('gpt2', 'asked')][0]
  folder = mine / 'weights' / 'gpt2'
  words = making.words(asked, places)
  assert words[0] == 'evaluate' and f'--weights={folder}' in words
  tuned = runs._run('experiments/bert/glue.py:sst2', {'seed': 1}, label='it', weights=str(folder), sha256='a')
  assert making.words(tuned, places)[-1] == f'--config.model.from={folder}'
  assert tuned.is_tuning and run_folders.changes_after(tuned, str(folder))['model.from'] == str(folder)
  assert 'tfds:glue/sst2' in table.rows['gpt2'].without['tuned'] and 'fetch' in table.rows['gpt2'].without['tuned']


def test_a_table_is_filled_and_a_part_of_a_set_is_not_compared(mine, capsys, monkeypatch):
  """3 of 9 passages: in parentheses. With all of 3 the number is compared, and marked."""
  from plm_jax import __main__

  monkeypatch.setattr('plm_jax.studies.tables.metric_names.check', lambda *unused, **rest: None)
  monkeypatch.setattr('plm_jax.studies.child.run', lambda words, **rest: __main__.main(words[3:]))
  assert tables.main(argv(mine, f'--workdir={mine / "work"}')) == 0
  printed = capsys.readouterr().out
  assert '| gpt2 | (45.9) | ' in printed and '3 of 9 examples are here' in printed and '** |' not in printed
  text = (mine / 'mine.py').read_text()
  (mine / 'mine.py').write_text(text.replace('whole=9', 'whole=3'))
  assert tables.main(argv(mine, f'--workdir={mine / "work"}', '--print')) == 0
  assert '**differs** |' in capsys.readouterr().out
  lines = (mine / 'work' / 'mine' / 'published' / 'table.csv').read_text().splitlines()
  assert lines[0].endswith(',compared') and lines[1].endswith(',differs') and 'is missing. Run: fetch' in lines[2]
  out = f'--out={mine / "work" / "mine" / "published"}'
  assert tables.main(argv(mine, '--print', out)) == 0 and '**differs** |' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('column', 'values', 'said'),
  [
    ('asked', [45.94], 'same'),  # 45.9 as printed, to two digits as its row
    ('asked', [45.96], 'differs'),
    ('tuned', [91.0, 91.2, 91.6], 'same'),
    ('tuned', [91.0, 91.02, 91.01], 'differs'),
    ('tuned', [91.25], 'one run has no spread'),
  ],
)
def test_what_differs(mine, column, values, said):
  """An evaluation beyond the printed digits, a fine-tuning outside of the interval in which one more seed would be."""
  table = file.read(str(mine / 'mine.py'), 'published')
  numbers = dict(asked=45.9) if column == 'asked' else dict(tuned=91.25)
  rows = {'gpt2': dataclasses.replace(table.rows['gpt2'], published=numbers)}
  cell = Measured(values=np.array([values]))
  assert published.verdict(dataclasses.replace(table, rows=rows), 'gpt2', column, cell) == said
  grey = {'gpt2': dataclasses.replace(rows['gpt2'], unlike={column: 'it holds 4 bits'})}
  assert published.verdict(dataclasses.replace(table, rows=grey), 'gpt2', column, cell) == 'it holds 4 bits'


def test_what_is_not_compared_is_grey_in_the_picture(mine, monkeypatch, tmp_path):
  colours = []
  monkeypatch.setattr('matplotlib.axes.Axes.plot', lambda self, *points, **style: colours.append(style['color']))
  table = file.read(str(mine / 'mine.py'), 'published')
  for unlike in ({}, {'asked': 'part'}):
    row = dataclasses.replace(table.rows['gpt2'], unlike=unlike)
    cell = Measured(values=np.array([[40.0]]))
    shown = dataclasses.replace(table, rows={'gpt2': row})
    picture.draw(shown, {('gpt2', 'asked'): cell}, tmp_path / 'a.png')
  assert colours[2::3] == [picture.PUBLISHED, picture.GREY]
  assert render.markdown(table, cells.EMPTY | {'scale': 'published'}).count('(45.9)') == 0


def test_weights_and_pretraining_do_not_mix(mine):
  text = (mine / 'mine.py').read_text()
  (mine / 'mine.py').write_text(text.replace("of='evaluation'", "of='parameters'"))
  with pytest.raises(ConfigError, match="weights have no pre-training to measure: add 'asked'"):
    file.read(str(mine / 'mine.py'), 'published')


@pytest.mark.released
def test_perplexity_by_windows_is_that_of_a_loop_over_transformers(released, shared_data, tmp_path):
  """512 tokens of WikiText-2 in windows of 256 that move by 128, as on the page of transformers, each token once."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  folder = released('smollm2')
  text = gzip.decompress((shared_data('wikitext_2') / 'test.txt.gz').read_bytes()).decode()
  ids = transformers.AutoTokenizer.from_pretrained(folder)(text[:4000], return_tensors='pt').input_ids[:, :512]
  model, nats, count, previous = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype='float32'), 0.0, 0, 0
  for begin in range(0, 512, 128):
    end = min(begin + 256, 512)
    window, targets = ids[:, begin:end], ids[:, begin:end].clone()
    targets[:, : previous - end] = -100
    scored = int((targets[:, 1:] != -100).sum())
    with torch.no_grad():
      nats, count = nats + model(window, labels=targets).loss.item() * scored, count + scored
    if (previous := end) == 512:
      break
  keys = {'data.path': str(shared_data('wikitext_2')), 'data.split': 'test[:512tokens]', 'data.documents': 'exact_file'}
  keys |= {'data.length': 256, 'data.stride': 128, 'data.batch_size': 4, 'data.cache': str(tmp_path / 'cache')}
  flags = [f'--config.eval.wikitext2.{key}={value}' for key, value in keys.items()]
  config = '--config=experiments/gpt/zero_shot.py:windows'
  flags += [config, '--evaluation=wikitext2', f'--weights={folder}', f'--workdir={tmp_path / "out"}']
  assert evaluate.main(flags) == 0
  found = json.loads((tmp_path / 'out' / 'evaluations.jsonl').read_text())['wikitext2/perplexity']
  assert count == 511 and found == pytest.approx(float(np.exp(nats / count)), rel=1e-4)
