"""SpanBERT, Table 6: which tokens are masked together (Joshi et al. 2019, §6.1).

python -m plm_jax.tables experiments/tables/spanbert_6.py --scale=small --workdir=runs/tables --data=../shared/data
"""

from experiments.tables import common

SUBWORDS = {'objective.where': dict(name='fixed_count', rate=0.15), 'objective.edit.per': 'token'}
WHOLE_WORDS = {'objective.where': dict(name='whole_word', rate=0.15), 'objective.edit.per': 'token'}
COLUMNS = ('SQuAD 2.0', 'MNLI', 'SST-2', 'QNLI')
TAGGER = 'it needs a tagger'


def get_table(scale):
  """Takes a scale."""

  def row(published, keys=None):
    made = common.pretraining(scale, 'spanbert/pretrain.py', 'mlm')
    made['keys'] = made['keys'] | (keys or {})
    return made | dict(published=dict(zip(('SQuAD 2.0', 'MNLI', 'QNLI'), published, strict=True)))

  return dict(
    title='SpanBERT, Table 6: which tokens are masked together',
    paper='Joshi et al. 2019, §6.1; large, 1.2 million steps, SQuAD 2.0 in F1',
    mark='B',
    columns=common.columns(scale, *COLUMNS),
    rows={
      'subword tokens': row((83.8, 86.7, 92.5), SUBWORDS),
      'whole words': row((84.3, 86.3, 92.8), WHOLE_WORDS),
      'named entities': dict(empty=TAGGER, published={'SQuAD 2.0': 84.8, 'MNLI': 86.0, 'QNLI': 93.1}),
      'noun phrases': dict(empty=TAGGER, published={'SQuAD 2.0': 85.0, 'MNLI': 86.5, 'QNLI': 93.2}),
      'geometric spans': row((85.4, 87.0, 93.3)),
    },
    claims=common.claims(('MNLI', 'SST-2'), ('geometric spans', 'subword tokens'), ('geometric spans', 'whole words')),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference='geometric spans',
  )
