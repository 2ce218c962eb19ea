"""SpanBERT, Table 6: which tokens are masked together (Joshi et al. 2019, §6.1).

plm-jax tables experiments/tables/spanbert_6.py --scale=small --workdir=runs/tables --data=../shared/data

The paper's rows have two segments and next-sentence prediction: the last one is the first of its Table 7. So do those
at its scale, pre-trained as in spanbert_7.py. Small and 1m: one segment; 1m has the columns of shared/ladder.py. Noun
phrases and names are those of launch/phrases.py, which has the command of its tagger.
"""

from experiments.tables.shared import bert, claims, ladder, scales, tasks

SCALES = ('tiny', 'small', '1m', 'paper')
COLUMNS = ('SQuAD 2.0', 'NewsQA', 'TriviaQA', 'coreference', 'MNLI', 'QNLI', 'GLUE')


def get_table(scale):
  """Takes a scale."""
  rate = 0.15 if scale == 'paper' else 0.4

  def row(published, masks='geometric_spans', segmenter=None):
    """Spans that are replaced as a whole, or other masks, of which each token has a replacement of its own."""
    if segmenter and scale == 'tiny':
      return dict(empty='it needs a tagger', published=claims.by_column(COLUMNS, published))
    if scale == 'paper':
      made = scales.pretraining(scale, 'bert/large.py', **bert.LIKE_SPANBERT)
    else:
      made = scales.pretraining(scale, 'spanbert/pretrain.py', 'mlm')
    spans = dict(probability=0.2, max_words=10) if masks == 'geometric_spans' else {}
    made['keys'] = made['keys'] | {
      'objective.where': dict(name=masks, rate=rate, **spans),
      'objective.edit': dict(name='bert_80_10_10', per='span' if spans else 'token'),
      'objective.masking': 'dynamic',
    }
    if segmenter:
      made['keys']['data.segmenter'] = f'launch.phrases:{segmenter}'
    return made | dict(published=claims.by_column(COLUMNS, published))

  columns = ladder.columns(scale, *COLUMNS[:-2], 'SST-2', *COLUMNS[-2:])
  rows = tasks.tuned_as(
    scale,
    'spanbert',
    {
      'subword tokens': row((83.8, 72.0, 76.3, 77.7, 86.7, 92.5, 83.2), 'fixed_count'),
      'whole words': row((84.3, 72.8, 77.1, 76.6, 86.3, 92.8, 82.9), 'whole_word'),
      'named entities': row((84.8, 72.7, 78.7, 75.6, 86.0, 93.1, 83.2), 'whole_word', 'names'),
      'noun phrases': row((85.0, 73.0, 77.7, 76.7, 86.5, 93.2, 83.5), 'whole_word', 'noun_phrases'),
      'geometric spans': row((85.4, 73.0, 78.8, 76.4, 87.0, 93.3, 83.4)),
    },
  )
  spans = 'geometric spans'
  one = 'Rows have one segment, where those of the paper have two and next-sentence prediction.'
  return dict(
    title='SpanBERT, Table 6: which tokens are masked together',
    paper='Joshi et al. 2019, §6.1; large, 1.2 million steps, SQuAD 2.0 in F1',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claimed(
      columns, rows, *((spans, other) for other in rows if other != spans), asked=ladder.asked(scale, 'SST-2')
    ),
    **scales.seeds(scale),
    summary='best point on dev' if scale == '1m' else 'mean',
    reference=spans,
    note='' if scale == 'paper' else f'{scales.masked(scale)} {one}',
  )
