"""Columns that can decide at 1 to 30 M parameters, for the rungs of `scales.RUNGS`.

SST-2 is 19,900 rows held out by sentence of its training rows, of which 42,338 are left to learn from:
  python launch/sst2_sentences.py ../shared/data/glue_sst2 runs/data/sst2_sentences
Rates of fine-tunings are chosen on dev, for each row. The head learns ten times as fast as the trunk.
"""

from typing import Any

from experiments.tables.shared import scales, tasks

SENTENCES = 'runs/data/sst2_sentences'
HEAD = 10.0  # times as fast as the trunk
GRID = tuple({'optim.rate': HEAD * rate} for rate in (1e-4, 2e-4, 5e-4))
CHOSEN = dict(grid=GRID, chosen_by=('validation/accuracy', 'max'), times=100)
LEFT_OUT = 'at these sizes it decides nothing: its examples are too few, or runs stay at chance'
PHENOMENA = (  # of BLiMP: its `linguistics_term`; selection (2,000 of 67,000 pairs) is in the total alone
  'anaphor_agreement', 'argument_structure', 'binding', 'control_raising', 'determiner_noun_agreement', 'ellipsis',
  'filler_gap_dependency', 'irregular_forms', 'island_effects', 'npi_licensing', 'quantifiers',
  'subject_verb_agreement',
)  # fmt: skip
FAMILIES = {  # config of SST-2, trunk of the tagging config, config of BLiMP: each trunk is scored as it was trained
  'bert': ('bert/glue.py:sst2,mean', 'bert', 'blimp/pairs.py:word_l2r'),
  'electra': ('bert/glue.py:sst2,mean', 'bert', 'blimp/pairs.py'),  # it is scored without masks
  'gpt': ('gpt/classify.py:sst2', 'gpt', 'blimp/pairs.py'),
  'ltr': ('bert/glue.py:sst2,mean', 'bert', 'blimp/pairs.py'),  # a causal LM that is fine-tuned like BERT
  'bart': ('bart/glue.py:sst2,base', 'bart', 'blimp/pairs.py'),
  't5': ('bert/glue.py:sst2,mean', 't5', 'blimp/pairs.py'),  # with `ENCODER`
  'xlnet': ('xlnet/fine_tune.py:sst2', 'xlnet', 'blimp/pairs.py:word_l2r'),
  'glm': ('bert/glue.py:sst2,mean', 'bert', 'blimp/pairs.py'),
}
# Of T5, whose decoder has written nothing but spans, tasks read the encoder alone, as Ni et al. 2021 do (Sentence-T5).
# A probe of a million parameters has 55.4 % on its states, and 25.6 on those of the decoder, which BART's paper reads.
ENCODER = {'model.name': 't5', 'model.variant': 't5-base', 'model.overrides.structure': 'encoder'}
SST2 = {family: f'experiments/{config}' for family, (config, _, _) in FAMILIES.items()}
PROBES = {family: f'experiments/tagging/fine_tune.py:ewt,{trunk}' for family, (_, trunk, _) in FAMILIES.items()}
PAIRS = {family: f'experiments/{config}' for family, (_, _, config) in FAMILIES.items()}
LOSSES = {'bert': 'experiments/bert/base.py:mlm', 'gpt': 'experiments/gpt/gpt.py', 'ltr': 'experiments/gpt/gpt.py'}
# what needs no network, by benchmarks/bag_of_words.py --svm on the same examples
TRIVIAL = {
  'SST-2': {'most frequent class': 55.8, 'bag of words': 81.4},
  'TREC': {'most frequent class': 18.8, 'bag of words': 90.2},
  'EWT probe': {'most frequent tag of a word': 86.2},
  'BLiMP': {'chance': 50.0},
}
NAMES = ('SST-2', 'TREC', 'EWT probe', 'BLiMP', 'loss')


def sizes(rung: str, model: str) -> dict[str, Any]:
  """Return the sizes of a trunk on a rung; those of two stacks have half of the layers in each."""
  own: dict[str, Any] = scales.SIZES | dict(scales.RUNGS[rung][0])
  if model in ('bart', 't5'):
    own |= dict.fromkeys(('num_layers', 'num_decoder_layers'), own['num_layers'] // 2)
  if model in ('t5', 'gpt_bert'):  # their parameters start as their papers say, whatever the width
    del own['init_std']
  if model in ('t5', 'gpt_bert', 'xlnet'):  # their positions are relative
    del own['position_init']
  if model == 't5':
    own['head_dim'] = own['hidden_dim'] // own['num_heads']
  if model == 'xlnet':  # the memory is the row before
    own['memory_length'] = scales.RUNGS[rung][1].get('data.length', scales.PRETRAINING['data.length'])
  return own


def columns(scale: str, *names: str) -> dict[str, dict[str, Any]]:
  """Return the columns of a table: on a rung those that decide, else `tasks.columns`."""
  if scale not in scales.RUNGS:
    return tasks.columns(scale, *names)
  own = {'SST-2': _sst2(), 'TREC': _trec(), 'EWT probe': _probe(), **_blimp(scale), 'loss': _loss()}
  found = {name: own.pop(name, None) or dict(empty=tasks.ABSENT.get(name, LEFT_OUT)) for name in names}
  return found | own


def asked(scale: str, *others: str) -> tuple[str, ...]:
  """Return the columns in which a table's claims are asked as well, `others` where it is no rung."""
  return NAMES if scale in scales.RUNGS else others


def tuned(steps: int) -> dict[str, Any]:
  """Return the keys of a fine-tuning; the grid has its rate."""
  optim = dict(name='adamw', rate=1e-3, schedule='linear', warmup=0.1, decay=0.01, clip=1.0)
  optim['scale'] = (('trunk/.*', 1 / HEAD), ('.*', 1.0))
  return scales.ON_A_LAPTOP | scales.ROWS | scales.every(steps) | {'optim': optim, 'epochs': None}


def _evaluated(**splits: str) -> dict[str, Any]:
  return {'eval': {name: dict(data=dict(split=split)) for name, split in splits.items()}}


def _sst2() -> dict[str, Any]:
  """Return the column of held-out sentences and their phrases."""
  keys = tuned(1_500) | _evaluated(validation='validation', test='test')
  keys |= {'data.path': SENTENCES, 'data.length': 64, 'data.buckets': (16, 32)}
  note = '19,900 phrases of the training set whose sentences are held out, where the paper has 872 sentences'
  return dict(metric='test/accuracy', configs=SST2, keys=keys, note=note, trivial=TRIVIAL['SST-2'], **CHOSEN)


def _trec() -> dict[str, Any]:
  """Return the column of questions, a tenth of which chooses the rate."""
  keys = tuned(800) | _evaluated(validation='train[90%shuffled:]', test='test')
  keys |= {'data.path': 'tfds:trec', 'data.fields': ('text',), 'data.label': 'label-coarse', 'data.layout': 'bert'}
  keys |= {'data.split': 'train[:90%shuffled]', 'adapter.classes': 6, 'adapter.pool': 'mean'}
  configs = dict.fromkeys(FAMILIES, 'experiments/finetune/classify.py')
  return dict(metric='test/accuracy', configs=configs, keys=keys, folder='trec', trivial=TRIVIAL['TREC'], **CHOSEN)


def _probe() -> dict[str, Any]:
  """Return the column of a linear layer on frozen states: parts of speech."""
  optim = dict(name='adam', rate=5e-3, schedule='linear', warmup=0.1)
  keys = scales.ON_A_LAPTOP | scales.every(600) | {'optim': optim, 'epochs': None, 'data.batch_size': 32}
  keys |= {'adapter.frozen': True, 'adapter.dropout': 0.0, 'data.length': 128, 'data.buckets': (32, 64)}
  made = dict(metric='test/accuracy', configs=PROBES, keys=keys, times=100, trivial=TRIVIAL['EWT probe'])
  return made | dict(folder='universal_dependencies_en_ewt')


def _blimp(scale: str) -> dict[str, dict[str, Any]]:
  """Return columns of minimal pairs: all, and by phenomenon; one evaluation has all numbers.

  The smallest rung scores 26,800 of the 67,000, larger ones a tenth.
  """
  keys = scales.ON_A_LAPTOP | _evaluated(test=f'test[:{40 if scale == "1m" else 10}%shuffled]')
  keys |= {'data.batch_size': 64}
  column = dict(of='evaluation', configs=PAIRS, keys=keys, times=100, folder='blimp', trivial=TRIVIAL['BLiMP'])
  metrics = {'BLiMP': 'test/accuracy'}
  metrics |= {f'BLiMP, {term.replace("_", " ")}': f'test/linguistics_term/{term}' for term in PHENOMENA}
  return {name: column | dict(metric=metric) for name, metric in metrics.items()}


def _loss() -> dict[str, Any]:
  """Return the column of the loss on the same held-out tokens for all rows of a family."""
  text = {key: scales.PRETRAINING[key] for key in ('data.path', 'data.length', 'data.batch_size')}
  keys = scales.ON_A_LAPTOP | text | {'data.text': 'text'}
  note = 'masked models: 15 % of the tokens, at the same positions for all rows; causal models: all tokens'
  return dict(of='evaluation', metric='validation/loss', better='min', configs=LOSSES, keys=keys, note=note)
