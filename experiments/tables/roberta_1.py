"""RoBERTa, Table 1: static against dynamic masking (Liu et al. 2019, §4.1).

plm-jax tables experiments/tables/roberta_1.py --scale=small --workdir=runs/tables --data=../shared/data

The numbers of dynamic masks are those of SEGMENT-PAIR+NSP in Table 2, so that is the format at the scale of the paper.
Small: full sentences; three pre-trainings a row, on a twenty-fifth of the text, which 800 steps read four times: static
masks are drawn once for each row. The paper reads each of its ten copies of a row four times; here the copies are left
out, since on more text each mask would be read once, and static and dynamic masks could not differ. The perplexity of
held-out masked text is not in the paper.

Scales 1m, 5m and 30m have the columns of shared/ladder.py; SST-2 is then in runs/data/sst2_sentences, which
  python launch/sst2_sentences.py ../shared/data/glue_sst2 runs/data/sst2_sentences
makes. The text is that of `plm-jax corpus english ../shared/data runs/data/english`.
"""

from experiments.tables.shared import claims, ladder, scales, tasks
from experiments.tables.shared.scales import SCALES as SCALES


def get_table(scale):
  """Takes a scale."""
  rate = scales.masks(scale)
  copies = 10 if scale == 'paper' else 1
  text = dict(data__split='train[:4%shuffled]') if scale == 'small' or scale in scales.RUNGS else {}
  pretrain = ('roberta/formats.py', 'segment_pair' if scale == 'paper' else 'full')
  static = dict(objective__masking='static', objective__copies=copies)
  if scale == 'paper':
    static['data__copies'] = copies
  perplexity = dict(metric='validation/perplexity', of='pretraining', better='min')
  columns = {'perplexity': perplexity, **ladder.columns(scale, 'SQuAD 2.0', 'MNLI', 'SST-2')}
  rows = tasks.tuned_as(
    scale,
    'roberta',
    {
      'reference': dict(
        empty='others trained it',
        published={'SQuAD 2.0': 76.3, 'MNLI': 84.3, 'SST-2': 92.8},
        quoted='BERT base of Yang et al. 2019, Table 6, rounded',
      ),
      'static': scales.pretraining(scale, *pretrain, **static, **rate, **text)
      | dict(published={'SQuAD 2.0': 78.3, 'MNLI': 84.3, 'SST-2': 92.5}),
      'dynamic': scales.pretraining(scale, *pretrain, **rate, **text)
      | dict(published={'SQuAD 2.0': 78.7, 'MNLI': 84.0, 'SST-2': 92.9}),
    },
  )
  other = "Rows are full sentences; the paper's numbers are those of segment pairs with next sentences (its Table 2)."
  return dict(
    title='RoBERTa, Table 1: static against dynamic masking',
    paper='Liu et al. 2019, §4.1; BERT base, SQuAD 2.0 in F1, MNLI-m and SST-2 in accuracy, medians of five',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claimed(columns, rows, ('dynamic', 'static'), asked=('perplexity', *ladder.asked(scale))),
    **scales.seeds(scale, tiny=2, small=1) | (dict(pretraining_seeds=3) if scale == 'small' else {}),
    summary='median' if scale == 'paper' else 'best point on dev' if scale in scales.RUNGS else 'mean',
    reference='dynamic',
    note='' if scale == 'paper' else f'{scales.masked(scale)} {other}',
  )
