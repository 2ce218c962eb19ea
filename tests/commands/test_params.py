"""Exact sizes of every published row, counted by shape."""

import functools
import importlib
import json
import pathlib

import jax
import pytest

from plm_jax.commands import params
from plm_jax.config import build, signatures
from plm_jax.text import byte_bpe
from plm_jax.training import step
from plm_jax.training.cost import sizes
from tests import tiny

pytestmark = pytest.mark.turns

# every exact number that is known of a published size: of the trunk, and of what else is counted
EXACT = {
  'bert-base': (109_482_240, 110_106_428, 108_310_272, 108_932_934),
  'bert-large': (335_141_888, 336_226_108, 333_579_264, 334_661_958),
  'spanbert-base': (108_310_272,),
  'spanbert-large': (333_579_264, 3_388_668),
  'roberta-base': (124_645_632, 124_697_433),
  'roberta-large': (355_359_744, 355_412_057),
  'albert-base-v1': (11_683_584, 11_813_810),
  'albert-large-v1': (17_683_968, 17_847_474),
  'albert-xlarge-v1': (58_724_864, 59_021_490),
  'albert-xxlarge-v1': (222_595_584, 223_158_450),
  'albert-base-v2': (11_683_584, 11_813_810),
  'albert-large-v2': (17_683_968, 17_847_474),
  'albert-xlarge-v2': (58_724_864, 59_021_490),
  'albert-xxlarge-v2': (222_595_584, 223_158_450),
  'distilbert-base': (66_362_880, 66_985_530),
  'mpnet-base': (109_486_464, 109_518_527),
  'ernie-1.0-base': (99_866_112,),
  'ernie-2.0-base-en': (109_486_080, 110_110_268),
  'gpt-bert-small': (29_892_164,),
  'gpt-bert-base': (119_454_532,),
  'modernbert-base': (149_014_272, 149_655_232),
  'modernbert-large': (394_781_696, 395_881_664),
  'deberta-base': (138_601_728,),
  'deberta-large': (405_163_008,),
  'deberta-v2-xlarge': (884_593_152,),
  'deberta-v2-xxlarge': (1_564_549_632,),
  'deberta-v3-xsmall': (70_682_112,),
  'deberta-v3-small': (141_304_320,),
  'deberta-v3-base': (183_831_552,),
  'deberta-v3-large': (434_012_160,),
  'electra-small': (13_549_057,),
  'electra-base': (109_483_009,),
  'electra-large': (335_142_913,),
  'electra-small-generator': (4_620_026,),
  'electra-base-generator': (33_740_602,),
  'electra-large-generator': (51_295_290,),
  't5-small': (60_506_624,),
  't5-base': (222_903_552,),
  't5-large': (737_668_096,),
  't5-3b': (2_851_598_336,),
  't5-11b': (11_307_321_344,),
  't5-v1_1-small': (76_961_152,),
  't5-v1_1-base': (247_577_856,),
  't5-v1_1-large': (783_150_080,),
  't5-v1_1-xl': (2_849_757_184,),
  't5-v1_1-xxl': (11_135_332_352,),
  'xlnet-base': (116_718_336, 116_750_336),
  'xlnet-large': (360_268_800, 360_300_800),
  'bart-base': (139_420_416, 140_139_264),
  'bart-large': (406_291_456,),
  'gpt': (116_534_784,),
  'gpt2': (124_439_808,),
  'gpt2-medium': (354_823_168,),
  'gpt2-large': (774_030_080,),
  'gpt2-xl': (1_557_611_200,),
  'gpt3-small': (125_226_240,),
  'gpt3-medium': (355_871_744,),
  'gpt3-large': (760_300_032,),
  'gpt3-xl': (1_315_723_264, 1_517_123_584),
  'gpt3-2.7b': (2_651_553_280,),
  'gpt3-6.7b': (6_658_404_352,),
  'gpt3-13b': (12_853_386_240, 12_952_938_780),
  'gpt3-175b': (174_604_259_328,),
  'cove': (3_609_600,),
  'cvt': (17_044_513,),
  'palm-8b': (8_632_012_800,),
  'palm-62b': (62_495_662_080,),
  'palm-540b': (540_356_474_880,),
  'llama-7b': (6_738_415_616,),
  'llama-13b': (13_015_864_320,),
  'llama-33b': (32_528_943_616,),
  'llama-65b': (65_285_660_672,),
  'llama2-7b': (6_738_415_616,),
  'llama2-13b': (13_015_864_320,),
  'llama2-70b': (68_976_648_192,),
  'ulmfit': (44_272_402, 20_211_600),
  'glm-base': (109_338_624,),
  'glm-large': (334_688_256,),
  'glm-10b': (9_880_682_496,),
  'elmo-small': (13_593_312,),
  'elmo-medium': (28_027_744,),
  'elmo-original': (93_600_864,),
  'chatglm2-6b': (6_243_584_000,),
  'glm-4-9b': (9_399_951_360,),
}


@pytest.fixture(scope='module')
def counted():
  return {row['variant']: row for row in sizes.published()}


@functools.cache
def in_training(variant, objective, vocab_size=None, overrides=(), **settings):
  """Parameters by their first name, of a trunk with an objective, or without one: {'trunk': ..., head: ...}."""
  family, known = published()[variant]
  size = vocab_size or known.vocab_size
  model = {'name': family, 'variant': variant, 'overrides': dict(overrides)}
  task = build.make(
    'objectives',
    {'name': objective, **settings},
    trunk=build.make('models', model, vocab_size=size),
    vocab=tiny.FakeVocab(size=size),
  )
  batch = tiny.make_batch() | (tiny.make_pairs() if objective == 'sentence_pair' else {})
  tree = step.abstract_params(task, tiny.spec(batch))
  return {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in tree.items()}


@functools.cache
def published():
  """variant -> (family, what `PUBLISHED` says)."""
  modules = {name: importlib.import_module(f'plm_jax.models.{name}') for name in signatures.names('models')}
  return {variant: (name, known) for name, module in modules.items() for variant, known in module.PUBLISHED.items()}


def pair(variant, *, question='nsp', vocab_size=None):
  return sum(in_training(variant, 'sentence_pair', vocab_size, question=question).values())


def mlm(variant):
  return sum(in_training(variant, 'mlm').values())


# what is counted beside the trunk -> a second count of it, from the row of the trunk
ALSO = {
  'with heads for masked tokens and next sentences': lambda row: pair(row['variant']),
  'cased, 28,996 ids': lambda row: row['parameters'] + (28_996 - 30_522) * row['counted']['token_embed'] // 30_522,
  'cased, 28,996 ids, with heads for masked tokens and next sentences': lambda row: pair(
    row['variant'], vocab_size=28_996
  ),
  'its span-boundary head, of 15 positions': lambda row: in_training(row['variant'], 'span_boundary', places=15)[
    'boundary'
  ],
  'with the unused sentence-type row of Hugging Face': lambda row: row['parameters'] + width(row),
  'as a masked language model, with the unused sentence-type row of Hugging Face': lambda row: (
    mlm(row['variant']) + width(row)
  ),
  'as a masked language model': lambda row: mlm(row['variant']),
  'with heads for masked tokens and sentence order': lambda row: pair(row['variant'], question='sop'),
  'without the pooler, which published checkpoints lack': lambda row: row['parameters'] - row['counted']['pooler'],
  'with the head that detects replaced tokens': lambda row: sum(
    in_training(row['variant'], 'rtd', sharing='all')[part] for part in ('trunk', 'rtd')
  ),
  'LSTM layers': lambda row: sum(row['counted'][f'lstm_{layer}'] for layer in range(3)),
  'without the summary layer': lambda row: row['parameters'] - row['counted']['pooler'],
  'without the summary layer, with its output bias': lambda row: sum(
    in_training(row['variant'], 'permutation_lm', memory=False).values()
  ),
  'with the 51,201 rows of the released table': lambda row: row['parameters'] + (51_201 - 50_265) * 768,
  '24 heads of 128, as printed': lambda row: sum(
    in_training(row['variant'], 'causal_lm', overrides=(('num_heads', 24), ('head_dim', 128))).values()
  ),
  'a width of 5,140, as printed': lambda row: sum(
    in_training(
      row['variant'], 'causal_lm', overrides=(('hidden_dim', 5140), ('num_heads', 20), ('mlp_dim', 4 * 5140))
    ).values()
  ),
}


def width(row):
  return row['counted']['token_embed'] // row['vocab_size']


@pytest.mark.parametrize('family', signatures.names('models'))
def test_every_published_size_is_exact(family, counted):
  module = importlib.import_module(f'plm_jax.models.{family}')
  for variant, known in module.PUBLISHED.items():
    row = counted[variant]
    assert row['parameters'] == known.parameters == sum(row['counted'].values()), variant


def test_every_variant_but_the_tiny_one_is_published():
  for family in signatures.names('models'):
    module = importlib.import_module(f'plm_jax.models.{family}')
    assert set(module.PUBLISHED) == set(module.CONFIGS) - {'tiny'}


@pytest.mark.parametrize('family', signatures.names('models'))
def test_what_else_is_counted_is_exact(family, counted):
  module = importlib.import_module(f'plm_jax.models.{family}')
  for variant, known in module.PUBLISHED.items():
    for what, number in known.also:
      assert ALSO[what](counted[variant]) == number, (variant, what)


def test_every_known_number_is_printed(counted):
  for variant, numbers in EXACT.items():
    assert set(numbers) <= {counted[variant]['parameters'], *counted[variant]['also'].values()}, variant
  assert sum(map(len, EXACT.values())) == 112


# first systems of each kind, by the year of their papers' first publication
TIMELINE = {
  'cove': (2017, 'lstm', 'supervised'),
  'cvt': (2018, 'lstm', 'supervised'),
  'gpt': (2018, 'decoder', 'autoregressive'),
  'bert-base': (2018, 'encoder', 'denoising'),
  'ulmfit': (2018, 'lstm', 'autoregressive'),
  'gpt2': (2019, 'decoder', 'autoregressive'),
  'roberta-base': (2019, 'encoder', 'denoising'),
  'xlnet-base': (2019, 'encoder', 'permutation'),
  'spanbert-base': (2019, 'encoder', 'denoising'),
  'bart-base': (2019, 'encoder-decoder', 'denoising'),
  't5-base': (2019, 'encoder-decoder', 'denoising'),
  'gpt3-175b': (2020, 'decoder', 'autoregressive'),
  'deberta-base': (2020, 'encoder', 'denoising'),
  'palm-540b': (2022, 'decoder', 'autoregressive'),
  'llama-7b': (2023, 'decoder', 'autoregressive'),
  'modernbert-base': (2024, 'encoder', 'denoising'),
}


def test_every_row_has_its_place_in_the_field(counted):
  for variant, place in TIMELINE.items():
    row = counted[variant]
    assert (row['year'], row['architecture'], row['objective_family']) == place, variant
    assert set(row['adapters']) <= set(signatures.names('adapters'))
  assert counted['roberta-base']['title'] == 'Liu et al., RoBERTa'
  assert counted['deberta-v3-base']['year'] == 2021


def test_what_is_not_counted_is_said(counted):
  assert counted['bert-base']['not_counted'] == ['heads of pre-training', 'the output matrix, which is the token table']
  assert counted['llama-7b']['not_counted'] == ['heads of pre-training']
  assert counted['llama-7b']['counted']['output'] == 32_000 * 4096


PARTS = {'a': {'name': 'mlm'}, 'b': {'name': 'unilm'}}


@pytest.mark.parametrize(
  'task',
  [
    {'adapter': {'name': 'tag', 'tags': ['O', 'B', 'I']}, 'kind': 'words'},
    {'objective': {'name': 'sentence_pair'}, 'name': 'pairs'},
    {'objective': {'name': 'mixture', 'parts': PARTS, 'rates': {'a': 1.0, 'b': 1.0}}, 'name': 'stream'},
  ],
)
def test_a_config_is_counted_without_its_data(task, tmp_path, capsys):
  byte_bpe.train(['some text'] * 9, size=300).save(tmp_path / 'vocab')
  data = {'name': 'labelled', 'path': '/nowhere', 'length': 32, 'batch_size': 4}
  values = {
    'steps': 1,
    'vocab': {'name': 'byte_bpe', 'path': str(tmp_path / 'vocab')},
    'model': {'name': 'bert', 'variant': 'tiny'},
    'data': data | {key: value for key, value in task.items() if key in ('name', 'kind')},
    'optim': {'rate': 1e-3},
  } | {key: value for key, value in task.items() if key in ('objective', 'adapter')}
  (tmp_path / 'config.json').write_text(json.dumps(values))
  assert params.main([f'--config={tmp_path / "config.json"}', '--json']) == 0
  (row,) = json.loads(capsys.readouterr().out)
  assert row['parameters'] == row['trunk'] + row['head']
  assert row['head'] > 0 and row['gflop_per_row'] > 0 and row['length'] == 32


def test_a_run_is_counted_with_the_vocabulary_in_it(capsys):
  """Its config names one that is no longer there."""
  run = pathlib.Path('tests/fixtures/bert_mlm/run')
  assert params.main([f'--workdir={run}', '--json']) == 0
  (row,) = json.loads(capsys.readouterr().out)
  assert row['parameters'] == json.loads((run / 'result.json').read_text())['parameters']


def test_a_config_whose_rows_go_on_is_counted(tmp_path, capsys):
  byte_bpe.train(['some text'] * 9, size=300).save(tmp_path / 'vocab')
  values = {
    'steps': 1,
    'vocab': {'name': 'byte_bpe', 'path': str(tmp_path / 'vocab')},
    'model': {'name': 'awd_lstm', 'variant': 'tiny'},
    'data': {'name': 'bptt', 'path': '/nowhere', 'length': 32, 'batch_size': 4},
    'objective': {'name': 'causal_lm', 'memory': True},
    'optim': {'rate': 1e-3},
  }
  (tmp_path / 'config.json').write_text(json.dumps(values))
  assert params.main([f'--config={tmp_path / "config.json"}', '--json']) == 0
  (row,) = json.loads(capsys.readouterr().out)
  assert row['parameters'] == row['trunk'] > 0 and row['gflop_per_row'] > 0


def test_bert_base_operations_match_the_closed_form(counted):
  length, d, v, layers = 512, 768, 30_522, 12
  layer = 24 * length * d * d + 4 * length * length * d
  assert counted['bert-base']['gflop_per_row'] == round((layers * layer + 2 * d * d + 2 * length * d * v) / 1e9, 3)


def test_json_is_what_the_table_shows(capsys, counted, monkeypatch):
  monkeypatch.setattr(sizes, 'published', lambda: list(counted.values()))
  assert params.main(['--all', '--json']) == 0
  assert json.loads(capsys.readouterr().out) == list(counted.values())
  assert params.main(['--all']) == 0
  shown = capsys.readouterr().out
  assert '174,604,259,328' in shown
  assert '109,482,240' in shown
