"""T5, Table 2: architectures, each with denoising or language modelling (Raffel et al. 2020, §3.2).

plm-jax tables experiments/tables/t5_2.py --scale=small --workdir=runs/tables --data=../shared/data

The last row, which is not pre-trained, is of Table 1 (§3.1.4). Small: stacks of 2 layers (`six`: of 1), rows of 64
tokens, AdamW; SST-2 written as text and scored by exact match.
"""

from experiments import common
from experiments.tables.shared import claims, scales, t5

ROWS = {  # words of the config: name, GLUE, CNN/DM, SQuAD, SuperGLUE, WMT's English to German, French, Romanian
  ('enc_dec',): ('encoder-decoder', (83.28, 19.24, 80.88, 71.36, 26.98, 39.82, 27.65)),
  ('shared',): ('shared encoder-decoder', (82.81, 18.78, 80.63, 70.73, 26.72, 39.03, 27.46)),
  ('six',): ('half as many layers', (80.88, 18.97, 77.59, 68.42, 26.38, 38.40, 26.95)),
  ('decoder',): ('language model', (74.70, 17.93, 61.14, 55.02, 25.09, 35.28, 25.86)),
  ('prefix',): ('prefix language model', (81.82, 18.61, 78.94, 68.11, 26.43, 37.98, 27.39)),
  ('enc_dec', 'lm'): ('encoder-decoder, LM objective', (79.56, 18.59, 76.02, 64.29, 26.27, 39.17, 26.86)),
}


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for words, (name, published) in ROWS.items():
    small = t5.SIZES | dict.fromkeys(('num_layers', 'num_decoder_layers'), 1 if 'six' in words else 2)
    small |= {'shared': dict(structure='shared'), 'decoder': dict(structure='decoder')}.get(words[0], {})
    small |= dict(structure='prefix') if words[0] == 'prefix' else {}
    keys = dict(vocab__extra=common.SENTINELS) if scale == 'small' else {}
    rows[name] = scales.pretraining(scale, 't5/architectures.py', *words, small=small, **keys)
    rows[name] |= dict(family='t5', published=claims.by_column(t5.COLUMNS, published))
  without = (66.22, 17.60, 50.31, 53.04, 25.86, 39.77, 24.04)
  rows['without pre-training'] = rows['encoder-decoder'] | dict(
    start='scratch', published=claims.by_column(t5.COLUMNS, without)
  )
  columns = t5.columns(scale)
  of_much_text = 'WMT en-fr'  # where the paper finds pre-training to be worth nothing
  return dict(
    title='T5, Table 2: architectures',
    paper='Raffel et al. 2020, §3.2; base, 2^19 steps, fine-tuned on each benchmark',
    mark='C',
    columns=columns,
    rows=rows,
    claims=[
      *claims.claimed(
        columns,
        rows,
        ('encoder-decoder', 'language model'),
        ('encoder-decoder', 'encoder-decoder, LM objective'),
        ('prefix language model', 'language model'),
        ('encoder-decoder', 'half as many layers'),
        ('shared encoder-decoder', 'prefix language model'),
        asked=('SST-2',),
      ),
      *claims.claimed(
        {name: column for name, column in columns.items() if name != of_much_text},
        rows,
        ('encoder-decoder', 'without pre-training'),
        asked=('SST-2',),
      ),
    ],
    tuning_seeds=dict(tiny=1, small=3, paper=1)[scale],
    reference='encoder-decoder, LM objective',  # it predicts plain text alone, without sentinels
  )
