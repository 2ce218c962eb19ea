"""Three scales of a table, and pre-training at each of them.

paper   the configs unchanged
small   about a million parameters, 800 steps of 64 rows of 64 tokens on the text in runs/data/english, or in --corpus,
        four minutes of one core for a pre-training. The text and the vocabulary are those that
        plm-jax corpus english ../shared/data runs/data/english
        plm-jax vocab train --source=runs/data/english --name=byte_bpe --size=4000 \\
          --out=runs/vocab/small_4000
        make; task sets as TFDS has them, or in --data
1m, 5m, 30m
        rungs of a ladder: 1, 5 and 30 M parameters that read 3, 10 and 41 M tokens of the same text, which
        has 14 M (the last reads it three times), on the columns of `ladder.py`
tiny    `quick` configs: it shows that a table works, and nothing else
"""

from collections.abc import Mapping
from typing import Any

# kernels that start from .02, which fits a width of 768, leave a GPT at the frequencies of words: 6.7 nats a token
# after 600 steps; from .06, 5.5 after 160
SIZES = dict(num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=512, dropout=0.0, attention_dropout=0.0, init_std=0.06)
ON_A_LAPTOP = {'sharding': {}, 'execution': dict(layers='loop'), 'accumulate': 1, 'best': None}
PRETRAINING = ON_A_LAPTOP | {
  'vocab': dict(name='byte_bpe', path='runs/vocab/small_4000'),
  'data.path': 'runs/data/english',
  'data.length': 64,
  'data.batch_size': 64,
  'optim': dict(name='adamw', rate=2e-3, schedule='linear', warmup=0.05, decay=0.01, clip=1.0),
  'steps': 800,
  'log_every': 40,
  'eval_every': 800,
  'save_every': 400,
}
# a quarter of a batch at a time stays in the cache of a core, which then does more tokens a second
IN_CACHE = dict(accumulate=4)
# In batches of 16 rows the label of two sentences has a larger gradient than the masked tokens (norms of the layers .6
# and .4 after 1,280 updates), and the network stays at the frequencies of words: perplexity 379 held out, 190 with a
# weight of 0. With this one it has 191, and labels 57.5 % of pairs right instead of 58.7. The contrast of n-grams has a
# gradient of 11 there; with a tenth of its weight the masked LM stays as well (382).
LABEL = dict(objective__weight=0.1)
# Sizes and keys of the rungs; starts as in the README of experiments/results. A masked LM of 1 M parameters does not
# leave the frequencies of words in 800 updates of 64 rows (perplexity 387 held out), nor in 3,200 of 16 (387), unless
# its positions start from sinusoids (258 and 197; with half the rate 154). Discriminators need more: `bert.electra`.
NEAR = dict(position_init='sinusoids')  # neighbours have similar positions from the start
UPDATES = {'data.batch_size': 16, 'steps': 3_200, 'log_every': 160, 'eval_every': 3_200, 'save_every': 3_200}
RUNGS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
  '1m': (NEAR, UPDATES | {'optim.rate': 1e-3}),
  '5m': (
    dict(num_layers=4, num_heads=4, hidden_dim=256, mlp_dim=1024, init_std=0.042, **NEAR),
    UPDATES | IN_CACHE | {'data.length': 128, 'optim.rate': 1e-3, 'steps': 5_000, 'eval_every': 5_000},
  ),
  '30m': (
    dict(num_layers=8, num_heads=8, hidden_dim=512, mlp_dim=2048, init_std=0.03, **NEAR),
    {'data.length': 128, 'data.batch_size': 128, 'optim.rate': 5e-4, 'steps': 2_500, 'eval_every': 2_500}
    | {'execution': dict(dtype='bfloat16')},
  ),
}
SCALES = ('tiny', 'small', 'paper', *RUNGS)  # of tables that have the rungs
# the text was measured without `data.sentences`; its lines are paragraphs
READS_SENTENCES = ('albert/', 'bart/', 'bert/', 'roberta/')
TUNING = ON_A_LAPTOP | {'optim.rate': 5e-4, 'epochs': None}
ROWS = {'data.length': 128, 'data.buckets': (16, 32, 64), 'data.batch_size': 32}


def dotted(keys: Mapping[str, Any]) -> dict[str, Any]:
  """Return changes given as keywords, with dots for two underscores."""
  return {key.replace('__', '.'): value for key, value in keys.items()}


def target(scale: str, config: str, *words: str, small: str = 'small') -> str:
  """Return a config below experiments/ with its words.

  `small` is the word of its own small size, '' if it has none.
  """
  more = dict(paper='', small=small, tiny='quick')[scale]
  words = (*words, more) if more else words
  return f'experiments/{config}{":" if words else ""}{",".join(words)}'


def pretraining(
  scale: str, config: str, *words: str, small: Mapping[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
  """Return the config and the keys of a row.

  Args:
    scale: of the table.
    config: below experiments/.
    words: of the config.
    small: sizes of the trunk at the small scale; None for `SIZES`.
    **keys: changes at every scale, with two underscores for a dot: `objective__masking='static'`.
  """
  own = dotted(keys)
  words = (*words, 'quick') if scale == 'tiny' else words
  target = f'experiments/{config}{":" if words else ""}{",".join(words)}'
  if scale == 'small' or scale in RUNGS:
    if config.startswith(READS_SENTENCES):
      own = {'data.sentences': None} | own
    sizes, rung = RUNGS.get(scale, ({}, {}))
    own = PRETRAINING | {'model.overrides': {**(SIZES if small is None else small), **sizes}} | rung | own
  return dict(config=target, keys=own)


def staged(scale: str, config: str, *words: str, small: str = 'small', **keys: Any) -> dict[str, Any]:
  """Return a row like `pretraining`, of a config with its own small size."""
  own = dotted(keys)
  return dict(config=target(scale, config, *words, small=small), keys=on_a_laptop(scale) | own)


def on_a_laptop(scale: str) -> dict[str, Any]:
  """Return changes for one device, where no score chooses a step."""
  return {} if scale == 'paper' else dict(ON_A_LAPTOP)


def masks(scale: str, *, lifted: bool = False) -> dict[str, Any]:
  """Return changes of a pre-training that masks 40 % of the tokens.

  They apply below the paper's scale.

  Args:
    scale: of the table.
    lifted: rows may have more masks than the bound of the config.
  """
  if scale == 'paper':
    return {}
  return dict(objective__where__rate=0.4) | (dict(objective__where__max_count=None) if lifted else {})


def masked(scale: str, then: str = 'so that little text teaches more', *, done: str = 'masked') -> str:
  """Return the note of a table whose rows use `masks`."""
  return '' if scale == 'paper' else f'Here 40 % of the tokens are {done}, {then}.'


def labelled(scale: str) -> str:
  """Return a sentence behind that of `masked` where rows have `LABEL`."""
  return ' The label of two sentences has a tenth of the weight.' if scale in RUNGS else ''


def seeds(scale: str, **own: int) -> dict[str, int]:
  """Return the numbers of pre-trainings and fine-tunings: of the smallest rung several pre-trainings."""
  tuning = dict(tiny=1, small=3, paper=5) | own | {'1m': 1, '5m': 3, '30m': 3}
  return dict(tuning_seeds=tuning[scale], pretraining_seeds=3 if scale == '1m' else 1)


def every(steps: int) -> dict[str, int]:
  """Return keys of a run of `steps` updates that is evaluated and saved at its end."""
  return {'steps': steps, 'log_every': steps // 5, 'eval_every': steps, 'save_every': steps}
