"""SpanBERT, Table 6: which tokens are masked together (Joshi et al. 2019, §6.1).

python -m plm_jax.tables experiments/tables/spanbert_6.py --scale=small --workdir=runs/tables --data=../shared/data
"""

from experiments.tables import common

COLUMNS = ('SQuAD 2.0', 'MNLI', 'SST-2', 'QNLI')
TAGGER = 'it needs a tagger'


def get_table(scale):
  """Takes a scale."""
  rate = 0.15 if scale == 'paper' else 0.4

  def row(published, masks=None):
    """Spans as in the config, or other masks, of which each token has a replacement of its own."""
    made = common.pretraining(scale, 'spanbert/pretrain.py', 'mlm')
    own = {'objective.where': dict(name=masks, rate=rate), 'objective.edit.per': 'token'}
    made['keys'] = made['keys'] | (own if masks else {'objective.where.rate': rate})
    return made | dict(published=common.by_column(('SQuAD 2.0', 'MNLI', 'QNLI'), published))

  return dict(
    title='SpanBERT, Table 6: which tokens are masked together',
    paper='Joshi et al. 2019, §6.1; large, 1.2 million steps, SQuAD 2.0 in F1',
    mark='B',
    columns=common.columns(scale, *COLUMNS),
    rows={
      'subword tokens': row((83.8, 86.7, 92.5), 'fixed_count'),
      'whole words': row((84.3, 86.3, 92.8), 'whole_word'),
      'named entities': dict(empty=TAGGER, published={'SQuAD 2.0': 84.8, 'MNLI': 86.0, 'QNLI': 93.1}),
      'noun phrases': dict(empty=TAGGER, published={'SQuAD 2.0': 85.0, 'MNLI': 86.5, 'QNLI': 93.2}),
      'geometric spans': row((85.4, 87.0, 93.3)),
    },
    claims=common.claims(('MNLI', 'SST-2'), ('geometric spans', 'subword tokens'), ('geometric spans', 'whole words')),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference='geometric spans',
    note=common.masked(scale),
  )
