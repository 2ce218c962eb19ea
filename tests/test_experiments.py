"""Every config: what its header tells, what its keys resolve to, and that `quick` is small and needs no network."""

import ast
import itertools
import json
import pathlib
import re
import subprocess
import sys

import pytest

from plm_jax import config
from plm_jax.cli import command
from plm_jax.config import signatures
from plm_jax.config.load import call
from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora import sources
from plm_jax.data.rows import examples
from plm_jax.data.rows.kinds import regression
from plm_jax.optim import schedules

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = signatures.experiment_files()
NAMES = [str(file.relative_to(ROOT)) for file in FILES]

WITHOUT_AN_UPDATE = [
  f'experiments/{name}.py' for name in ('blimp/pairs', 'gpt/heuristics', 'gpt/prompt', 'gpt/zero_shot')
]
WITHOUT_EVALUATION = ['experiments/glove/glove.py']  # counts of another text are of another size, and so is its loss
WITHOUT_EFFECT = [('hellaswag', 'joined')]  # its context is one field already


@pytest.fixture(params=NAMES)
def name(request):
  return request.param


def header(name):
  return ast.get_docstring(ast.parse((ROOT / name).read_text(encoding='utf-8'))) or ''


def arguments(name):
  """The words that a config takes, as its own error lists them; '' is none of them."""
  with pytest.raises(ConfigError, match='takes no argument') as caught:
    config.load(f'{ROOT / name}:no_such_word')
  return ['', *str(caught.value).rpartition('It takes: ')[2].removesuffix('.').split(', ')]


def test_there_are_configs():
  assert 'experiments/quickstart/pretrain.py' in NAMES
  assert 'experiments/common.py' not in NAMES


def test_a_run_goes_on_from_the_config_that_it_keeps(name):
  """A default -1 of a number that may be a float, as of `data.missing`, is read again as -1.0."""
  made = config.resolve(config.load(str(ROOT / name)))
  assert config.check_resume(made, json.loads(json.dumps(made))) == []


def test_the_header_has_a_command_the_hardware_an_expectation_and_the_differences(name):
  text = header(name)
  assert re.search(rf'^ *plm-jax train --config={name}\S* --workdir=runs/\S+', text, re.MULTILINE)
  for start in ('Hardware: ', 'Expect', 'Differs from the paper: '):
    assert re.search(rf'^{start}', text, re.MULTILINE), f'no line begins with {start!r}'
  assert re.search(r'\b(18|19|20)\d\d\b', text), 'names no paper'
  assert len((ROOT / name).read_text().splitlines()) < 90


def test_commands_in_the_header_are_sound(name):
  commands = re.findall(rf'--config=({name}\S*)((?: --config\.\S+)*)', header(name))
  assert commands
  for target, changes in commands:
    words = [f'--config={ROOT / target}', *changes.split(), '--print_config']
    assert command.parse(command.command('train', ''), words)[1] is None


@pytest.mark.turns
def test_every_argument_resolves_and_survives_json(name):
  words = arguments(name)
  assert 'quick' in words
  for word, quick in itertools.product([w for w in words if w != 'quick'], ('', 'quick')):
    argument = ','.join(filter(None, (word, quick)))
    values = config.resolve(config.load(f'{ROOT / name}:{argument}'))
    assert config.resolve(json.loads(json.dumps(values))) == values


def of_arguments(name, given):
  """What the config answers to each argument: its keys, or what it refuses it with."""

  def answer(module, argument):
    try:
      return module.get_config(argument).to_dict()
    except ValueError as error:
      return str(error)

  return call(ROOT / name, lambda module: {argument: answer(module, argument) for argument in given})


@pytest.mark.parametrize('name', [name for name in NAMES if name not in WITHOUT_AN_UPDATE])
def test_no_step_is_chosen_by_a_test_set(name):
  """Nor is a trial of a sweep, which is judged by the same metric."""
  for argument, keys in of_arguments(name, [word for word in arguments(name) if word != 'quick']).items():
    if isinstance(keys, dict) and keys['best']:
      judge = keys['eval'][keys['best'][0].partition('/')[0]]['data']
      assert not (judge.get('split') or '').startswith('test'), argument


def test_no_word_of_two_is_ignored(name):
  """Two words that exclude each other are refused; else each changes what the other alone stands for."""
  alone = of_arguments(name, [word for word in arguments(name) if word != 'quick'])
  telling = [word for word in alone if alone[word] != alone['']]
  pairs = {','.join(pair): pair for pair in itertools.combinations(telling, 2) if pair not in WITHOUT_EFFECT}
  for argument, both in of_arguments(name, pairs).items():
    one, other = pairs[argument]
    if isinstance(both, str):
      assert re.search(f"'({one}' and '{other}|{other}' and '{one})' exclude each other", both)
    else:
      assert both not in (alone[one], alone[other]), argument


def test_two_words_of_one_kind_are_refused_by_name():
  with pytest.raises(ConfigError, match=r"'sst2' and 'cola' exclude each other.*one of: sst2, .*mnli"):
    config.load(f'{ROOT}/experiments/bert/glue.py:large,sst2,cola')
  twice = config.load(f'{ROOT}/experiments/bert/glue.py:sst2,sst2')
  assert twice == config.load(f'{ROOT}/experiments/bert/glue.py:sst2')
  with pytest.raises(ConfigError, match="'forward' and 'backward' exclude"):  # one of them is how it is without a word
    config.load(f'{ROOT}/experiments/ulmfit/pretrain.py:forward,backward')


def inner_blocks(data):
  """The blocks of data that have a path, inside mixtures."""
  return [inner for part in data['parts'].values() for inner in inner_blocks(part)] if 'parts' in data else [data]


@pytest.mark.turns
def test_quick_is_small_and_needs_no_network(name):
  for word in arguments(name):
    values = config.resolve(config.load(f'{ROOT / name}:{word},quick'))
    assert values['model']['variant'] == 'tiny'
    assert values['steps'] <= 20
    assert values['data']['length'] * values['data']['batch_size'] <= 1024
    assert values['init_from'] == []
    schedules.make(name=values['optim']['schedule'], rate=1e-3, steps=20, warmup=values['optim']['warmup'])
    for data in (values['data'], *(block['data'] for block in values['eval'].values())):
      for part in inner_blocks(data):
        assert part['path'].partition('/')[0] == 'pydocs'
        assert part.get('documents', 'blank_line') == 'blank_line'  # others are for .txt
    if name in WITHOUT_EVALUATION:
      assert (values['eval'], values['best']) == ({}, None)
    else:
      assert values['eval'] and values['best'][0].partition('/')[0] in values['eval']


@pytest.mark.parametrize(
  ('target', 'scores', 'best'),
  [
    ('glm/superglue.py:record', ['record'], 'f1'),
    ('glm/superglue.py:multirc', ['multirc'], 'f1a'),
    ('glm/superglue.py:cb', ['macro_f1'], 'accuracy'),
    ('glm/superglue.py:rte', None, 'accuracy'),
    ('t5/tasks.py:record', ['record'], 'f1'),
    ('t5/tasks.py:multirc', ['multirc'], 'f1a'),
    ('t5/tasks.py:cb', ['match', 'macro_f1'], 'exact_match'),
    ('t5/tasks.py:cola', ['match', 'matthews'], 'matthews'),
    ('t5/tasks.py:stsb', ['match', 'correlation'], 'spearman'),
    ('t5/tasks.py:squad', ['squad'], 'f1'),
    ('bert/features.py:cola', ['matthews'], 'matthews'),
    ('bert/features.py:mrpc', ['f1'], 'accuracy'),
    ('bert/features.py:stsb', None, 'spearman'),  # a regression has its correlations by itself
    ('gpt/prompt.py:copa,few', ['draws'], 'accuracy'),
    ('gpt/prompt.py:lambada,few', ['draws'], 'answer_accuracy'),
    ('gpt/prompt.py:lambada', [], 'answer_accuracy'),
  ],
)
def test_scores_are_those_that_the_benchmarks_report(target, scores, best):
  values = resolved(target)
  (split, block), *_ = values['eval'].items()
  assert (block['scores'], values['best']) == (scores, [f'{split}/{best}', 'max'])


def test_noise_and_optimiser_settings_that_matter_are_those_of_the_papers():
  bert = config.resolve(config.load(str(ROOT / 'experiments/bert/base.py')))
  assert (bert['steps'], bert['data']['batch_size'], bert['data']['length']) == (1_000_000, 256, 512)
  assert (bert['optim']['rate'], bert['optim']['warmup'], bert['optim']['clip']) == (1e-4, 10_000, 1.0)
  assert bert['objective']['masking'] == 'static'
  where = {'name': 'fixed_count', 'rate': 0.15, 'max_count': 77, 'count': 'bert', 'candidates': 'ordinary'}
  assert bert['objective']['where'] == where
  edit = {'name': 'bert_80_10_10', 'mask': 0.8, 'random': 0.1, 'per': 'token', 'random_ids': 'all'}
  assert bert['objective']['edit'] == edit
  gpt = config.resolve(config.load(str(ROOT / 'experiments/gpt/classify.py')))
  assert (gpt['adapter']['lm_weight'], gpt['optim']['rate'], gpt['epochs']) == (0.5, 6.25e-5, 3)


def resolved(name, *changes):
  words = [f'--config={ROOT}/experiments/{name}', *(f'--config.{change}' for change in changes), '--workdir=w']
  return command.parse(command.command('train', ''), words)[1]


# What the released codes and papers set, by config; what differs stands in the header.
NORMS_AND_BIASES = [['.*(norm/scale|/bias)', 0.0], ['.*', 0.01]]
ROBERTA = {
  'objective.where': {
    'name': 'fixed_count', 'rate': 0.15, 'max_count': None, 'count': 'roberta', 'candidates': 'all',
  },
  'objective.edit.random_ids': 'ordinary',
  'objective.masking': 'dynamic',
  'optim.decay': 0.01,  # of all parameters (fairseq, optim/adam.py)
  'optim.clip': None,
  'optim.b2': 0.98,
}  # fmt: skip
BART = {'optim.decay': 0.01, 'optim.clip': None, 'optim.b2': 0.98, 'objective.where.mean': 3.0}
BERT_ADAM = {
  'optim.name': 'bert_adam',
  'optim.schedule': 'linear_bert',
  'optim.decay': NORMS_AND_BIASES,
  'optim.clip': 1.0,
}
SOURCES = {
  # google-research/albert: create_pretraining_data, lamb_optimizer, optimization
  'albert/pretrain.py': {
    'objective.masking': 'static', 'objective.copies': 40, 'data.copies': 40, 'data.short_probability': 0.1,
    'optim.bias_correction': False, 'optim.adapt': [['.*(norm/scale|/bias)', 0.0], ['.*', 1.0]],
    'optim.decay': NORMS_AND_BIASES, 'optim.schedule': 'linear_bert', 'optim.warmup': 3_125, 'optim.rate': 1.76e-3,
  },
  # fairseq: mask_tokens_dataset, examples/roberta/config/pretraining, optim/adam
  'roberta/pretrain.py': {**ROBERTA, 'optim.rate': 6e-4, 'optim.warmup': 24_000},
  'roberta/pretrain.py:large': {**ROBERTA, 'optim.rate': 4e-4, 'optim.warmup': 30_000},
  'roberta/formats.py:sentence_pair': ROBERTA,
  # fairseq: models/bart, examples/bart/README.glue.md
  'bart/base.py': BART,
  'bart/large.py': BART,
  'bart/comparison.py:infilling': BART,
  'bart/glue.py:rte': {
    'model.overrides.attention_dropout': 0.1, 'optim.decay': 0.01, 'optim.warmup': 0.06, 'optim.rate': 1e-5,
    'data.batch_size': 32, 'optim.eps': 1e-8, 'optim.b2': 0.98,
  },
  # facebookresearch/SpanBERT, pretraining/README.md; the decay is the paper's
  'spanbert/pretrain.py': {
    'optim.decay': 0.1, 'optim.eps': 1e-8, 'optim.clip': 1.0, 'steps': 2_400_000, 'objective.max_targets': 15,
    'objective.place_dim': 200, 'objective.edit.per': 'span', 'data.layout': 'rows',
  },
  # microsoft/DeBERTa: optims/xadam, lr_schedulers, experiments/language_model, experiments/glue/mnli.sh
  'deberta/base.py:script': {**BERT_ADAM, 'optim.rate': 1e-4, 'data.batch_size': 256, 'objective.where.max_count': 80},
  'deberta/v3.py:xsmall': {**BERT_ADAM, 'optim.rate': 3e-4, 'data.batch_size': 64, 'objective.where.max_count': 80},
  'deberta/v3.py:large': {**BERT_ADAM, 'optim.rate': 1e-4, 'objective.generator.overrides.num_layers': 12},
  'deberta/glue.py:v3-small': {
    **BERT_ADAM, 'epochs': 3, 'optim.rate': 4.5e-5, 'optim.warmup': 1500, 'adapter.dropout': 0.2,
  },
  # google-research/electra: configure_pretraining, model/optimization
  'electra/small.py': {'objective.where.max_count': 19, 'optim.schedule': 'gpt', 'optim.rate': 5e-4},
  'electra/base.py': {'objective.where.max_count': 79, 'optim.schedule': 'gpt', 'optim.rate': 2e-4},
  'electra/large.py': {'objective.where.max_count': 130, 'objective.where.rate': 0.25, 'data.batch_size': 2048},
  # THUDM/GLM: config/ds_block_*.sh and config_block_*.json; warm-up is a share of the steps of decay
  'glm/base.py': {'optim.until': 0.8, 'optim.warmup': 0.04, 'optim.floor': 0.05, 'optim.b2': 0.98, 'optim.eps': 1e-6},
  'glm/large.py': {'optim.until': 0.8, 'optim.warmup': 0.04, 'optim.rate': 2e-4, 'steps': 200_000},
  'glm/10b.py': {
    'optim.until': 0.7, 'optim.warmup': 0.028, 'optim.floor': 0.1, 'optim.rate': 1e-4, 'optim.b2': 0.95,
    'optim.eps': 1e-8,
  },
  # fairseq: examples/bart/README.summarization.md and README.md; its greatest lengths, 140 and 60, count no end token
  'bart/summarise.py:cnn_dailymail': {
    'adapter.label_smoothing': 0.1, 'adapter.start': 'eos', 'adapter.decoding.beams': 4, 'steps': 20_000,
    'adapter.decoding.length_penalty': 2.0, 'adapter.decoding.min_new': 55, 'adapter.decoding.max_new': 141,
    'adapter.decoding.no_repeat': 3, 'adapter.decoding.early_stop': True, 'optim.rate': 3e-5, 'optim.warmup': 500,
    'optim.clip': 0.1, 'optim.decay': 0.01, 'data.batch_size': 64,
  },
  'bart/summarise.py:xsum': {
    'adapter.decoding.beams': 6, 'adapter.decoding.length_penalty': 1.0, 'adapter.decoding.min_new': 10,
    'adapter.decoding.max_new': 61, 'adapter.decoding.no_repeat': 3, 'steps': 15_000,
  },
  # zihangdai/xlnet: scripts/tpu_squad_large.sh; the heads of function_builder.py read states without more dropout
  'xlnet/squad.py': {
    'adapter.dropout': 0.0, 'adapter.max_answer': 64, 'adapter.answerable_weight': 0.5, 'adapter.starts': 5,
    'optim.rate': 3e-5, 'optim.warmup': 1000, 'data.batch_size': 48, 'data.length': 512, 'steps': 8000,
  },
  # the paper's §5.4 (beam width 5, length penalty 1); its rates are not published
  'bart/translate.py:second': {
    'adapter.decoding.beams': 5, 'adapter.decoding.length_penalty': 1.0, 'adapter.label_smoothing': 0.1,
    'adapter.stage': 'second', 'adapter.source.overrides.num_layers': 6, 'adapter.source.variant': 'roberta-large',
  },
  # fairseq: examples/roberta/README.glue.md
  'roberta/glue.py:rte': {
    'optim.rate': 2e-5, 'data.batch_size': 16, 'epochs': 10, 'optim.warmup': 0.06, 'optim.decay': 0.1,
    'optim.b2': 0.98, 'optim.eps': 1e-6, 'adapter.hidden': 1024,
  },
  # Lan et al. 2019, Table 14
  'albert/fine_tune.py:race': {
    'optim.rate': 2e-5, 'data.batch_size': 32, 'steps': 12_000, 'optim.warmup': 1_000, 'data.length': 512,
    'model.overrides.dropout': 0.1,
  },
  'albert/fine_tune.py:squad1': {
    'optim.rate': 5e-5, 'data.batch_size': 48, 'steps': 3_649, 'data.length': 384, 'model.overrides.dropout': 0.0,
  },
  # Yang et al. 2019, Table 8
  'xlnet/fine_tune.py:race': {'optim.rate': 2e-5, 'data.batch_size': 32, 'steps': 12_000, 'optim.eps': 1e-6},
  'xlnet/fine_tune.py:mnli': {'optim.rate': 2e-5, 'data.batch_size': 128, 'steps': 10_000, 'data.length': 128},
  # google-research/electra: configure_finetuning
  'electra/glue.py:rte,large': {'optim.rate': 5e-5, 'epochs': 10, 'optim.schedule': 'gpt', 'data.length': 128},
  # google-research/text-to-text-transfer-transformer: models/gin, the paper's §3.1.2 and appendix
  't5/tasks.py:wmt_en_de': {
    'optim.rate': 1e-3, 'optim.schedule': 'constant', 'steps': 2**18, 'data.batch_size': 128, 'data.length': 512,
    'save_every': 5_000, 'adapter.decoding.beams': 4, 'adapter.decoding.length_penalty': 0.6,
    'adapter.decoding.early_stop': 'never',
  },
  # fastai/fastai, courses/dl2/imdb_scripts/finetune_lm.py
  'ulmfit/fine_tune.py:imdb,released': {
    'optim.scale': [['trunk/lstm_2/.*', 1.0], ['trunk/lstm_1/.*', 1 / 3], ['trunk/lstm_0/.*', 1 / 6], ['.*', 0.5]],
  },
  # zihangdai/xlnet, train.py
  'xlnet/base.py': {'optim.floor': 0.001, 'optim.schedule': 'linear'},
  'xlnet/large.py': {'optim.floor': 0.001, 'optim.rate': 4e-4, 'optim.warmup': 40_000, 'data.batch_size': 8192},
}  # fmt: skip
# Settings that are not the source's, and the words of the header that say so.
SAID = {
  'albert/pretrain.py': ('WordPiece', 'keeps 20'),
  'bart/base.py': ('packed side', 'vocabulary'),
  'bart/comparison.py': ('packed side', 'vocabulary'),
  'bart/large.py': ('packed side', 'vocabulary'),
  'bart/glue.py': ('1,024',),
  'bart/summarise.py': ('number of rows', 'rouge-score'),
  'bert/base.py': ('vocabulary', 'BooksCorpus'),
  'deberta/v3.py': ('default is 10', 'small'),
  'deberta/base.py': ('vocabulary', 'batches of 32'),
  'distilbert/base.py': ('vocabulary',),
  'electra/base.py': ('vocabulary',),
  'electra/large.py': ('vocabulary',),
  'electra/small.py': ('vocabulary',),
  'gpt/gpt2.py': ('vocabulary', 'parameters decay'),
  'gpt/gpt3.py': ('parameters decay',),
  'llama/pretrain.py': ('parameters decay', 'BPE'),
  'roberta/formats.py': ('vocabulary', 'b2'),
  'roberta/pretrain.py': ('vocabulary',),
  'spanbert/pretrain.py': ('vocabulary', '.01'),
}


@pytest.mark.parametrize('target', SOURCES)
def test_settings_are_those_of_the_released_codes(target):
  values = resolved(target)
  for path, expected in SOURCES[target].items():
    found = values
    for part in path.split('.'):
      found = found[part]
    assert found == expected, path


@pytest.mark.parametrize('target', SAID)
def test_headers_say_what_differs(target):
  text = ' '.join(header(f'experiments/{target}').split())
  assert not [words for words in SAID[target] if words not in text]


@pytest.mark.parametrize(('trunk', 'decay'), [('roberta', 0.1), ('bart', 0.01)])
def test_trunks_of_fairseq_decay_all_parameters_as_their_own_configs_do(trunk, decay):
  for name in (f'options/fine_tune.py:{trunk}', f'tagging/fine_tune.py:{trunk}', f'{trunk}/glue.py'):
    assert resolved(name)['optim']['decay'] == decay


def test_minus_one_is_a_score_as_any_other_of_a_person(tmp_path):
  rows = [{'text': f'row {number}', 'score': score} for number, score in enumerate((-1, -1.0, 0.5, 1))]
  (tmp_path / 'train.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  records = sources.open_source(str(tmp_path), cache=str(tmp_path))
  block = resolved('finetune/regress.py')['data']
  for missing, kept in ((block['missing'], [0, 1, 2, 3]), (-1, [2, 3])):
    asked = examples.asked(fields=('text',), label='score', missing=missing)
    assert regression.make(records=records, asked=asked).row_ids.tolist() == kept


def test_the_four_input_formats_of_roberta_feed_the_same_tokens():
  found = {form: resolved(f'roberta/formats.py:{form}') for form in ('full', 'doc', 'segment_pair', 'sentence_pair')}
  assert {values['data']['length'] * values['data']['batch_size'] for values in found.values()} == {512 * 256}
  assert {values['steps'] for values in found.values()} == {1_000_000}
  told = {
    form: (v['objective'].get('question'), v['data'].get('layout'), v['data'].get('unit')) for form, v in found.items()
  }
  assert told == {
    'full': (None, 'full', None),
    'doc': (None, 'documents', None),
    'segment_pair': ('nsp', None, 'segment'),
    'sentence_pair': ('nsp', None, 'sentence'),
  }
  assert all(values['objective']['masking'] == 'dynamic' for values in found.values())


@pytest.mark.parametrize(
  ('argument', 'changes', 'changed'),
  [
    (':mlm', (), ('objective.', 'data.')),  # without next sentences
    ('', ('objective.masking=dynamic',), 'objective.masking'),
    (':128', (), ('data.length', 'objective.where.max_count')),
    ('', ('data.batch_size=8192',), 'data.batch_size'),
    ('', ('objective.where={"name": "geometric_spans", "rate": 0.15}',), 'objective.where'),
  ],
)
def test_what_was_changed_in_bert_are_switches_of_their_own(argument, changes, changed):
  def settings(path, value):
    if not isinstance(value, dict):
      return {path: value}
    return {key: leaf for name, part in value.items() for key, leaf in settings(f'{path}.{name}', part).items()}

  base, other = (
    {
      key: leaf
      for name in ('model', 'objective', 'data', 'optim')
      for key, leaf in settings(name, values[name]).items()
    }
    for values in (resolved('bert/base.py'), resolved(f'bert/base.py{argument}', *changes))
  )
  found = {key for key in base.keys() | other.keys() if base.get(key) != other.get(key)}
  assert found and all(key.startswith(changed) for key in found), found


def test_five_improvements_of_bert_are_presets():
  roberta, spanbert, albert, distilbert, deberta = (
    resolved(f'{name}.py')
    for name in ('roberta/pretrain', 'spanbert/pretrain', 'albert/pretrain', 'distilbert/base', 'deberta/base')
  )
  # longer, larger batches of full rows, masked anew each time, no next sentences
  assert (roberta['objective']['name'], roberta['objective']['masking']) == ('mlm', 'dynamic')
  assert (roberta['data']['layout'], roberta['data']['length'], roberta['data']['batch_size']) == ('full', 512, 8192)
  # spans and their boundaries, one text a row
  assert (spanbert['objective']['name'], spanbert['data']['layout']) == ('span_boundary', 'rows')
  where = {'name': 'geometric_spans', 'rate': 0.15, 'probability': 0.2, 'max_words': 10}
  assert (spanbert['objective']['where'], spanbert['objective']['edit']['per']) == (where, 'span')
  # shared layers, a factorised table, sentence order, n-grams
  assert (albert['objective']['question'], albert['objective']['where']['name']) == ('sop', 'ngram')
  assert albert['model']['name'] == 'albert'
  # half the layers, taught by the whole
  assert (distilbert['model']['variant'], distilbert['objective']['teacher']['variant']) == (
    'distilbert-base',
    'bert-base',
  )
  # content and position apart, absolute positions in the decoder alone
  assert (deberta['model']['name'], deberta['objective']['name']) == ('deberta', 'emd_mlm')


def test_defaults_of_every_plug_in_can_be_read():
  """A default that takes running code would be missing from config.json."""
  for folder in ('models', 'objectives', 'adapters', 'data', 'text'):
    for name in signatures.names(folder):
      known = signatures.signature(folder, name)
      computed = [key for key, keyword in known.items() if keyword.default is signatures.Missing.COMPUTED]
      assert set(computed) <= {'execution'}, f'{folder}/{name}.py'


def test_listing_and_resolving_load_no_jax(tmp_path):
  program = f"""
import sys
from plm_jax import config
from plm_jax.config import listing
for name in {NAMES!r}:
  config.resolve(config.load(name))
print(listing.text())
heavy = {{'jax', 'flax', 'optax', 'numpy', 'tensorflow_datasets', 'tokenizers'}} & set(sys.modules)
assert not heavy, heavy
"""
  done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  for word in ('bert-base', 'fixed_count', 'classify', 'stream', *NAMES):
    assert word in done.stdout


@pytest.mark.parametrize('words', [('--help',), ('--list',), ('--config=experiments/bert/bass.py', '--workdir=w')])
def test_commands_answer_without_jax(words):
  program = f"""
import runpy, sys
sys.argv = ['plm-jax', 'train', *{words!r}]
try:
  runpy.run_module('plm_jax', run_name='__main__')
except SystemExit as error:
  code = error.code or 0
assert 'jax' not in sys.modules
sys.exit(code)
"""
  done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == (2 if words[0].startswith('--config') else 0), done.stderr
  if done.returncode:
    assert 'bert/base.py' in done.stderr
    assert 'Traceback' not in done.stderr


def test_configs_that_use_sentences_choose_how_they_end(name):
  """Corpora of one sentence a line and of paragraphs both have pairs, whole sentences and sentences to permute."""
  for word in arguments(name):
    made = json.loads(json.dumps(config.resolve(config.load(f'{ROOT / name}:{word}'))))
    data, objective = made['data'] or {}, made['objective'] or {}
    permutes = any(entry.get('name') == 'permute_sentences' for entry in objective.get('rearrange') or ())
    if data.get('name') == 'pairs' or data.get('whole_sentences') or permutes:
      assert data['sentences'], word
