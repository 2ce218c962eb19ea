"""How many labels does a trunk that knows English save? MiniLM on TREC, with 8 to all 5,452 labelled questions.

bash launch/released.sh
plm-jax tables experiments/tables/minilm_labels.py --scale=small --workdir=runs/tables --data=../shared/data
python -m benchmarks.bag_of_words experiments/tables/minilm_labels.py --scale=small --data=../shared/data

Every run takes 100 steps of 16 rows, whatever the number of texts, which are drawn by the number of rows alone.
"""

from experiments.tables.shared import claims, minilm, scales

# number of labels: scores of the most frequent class and of a bag of words
LABELS = {
  8: (13.0, 15.2),
  32: (18.8, 35.6),
  128: (27.6, 51.0),
  512: (27.6, 71.2),
  2_000: (13.0, 83.2),
  5_452: (18.8, 88.2),
}


def get_table(scale):
  """Takes a scale."""
  (plain,) = minilm.columns(scale, 'TREC').values()
  columns = {}
  for count, (frequent, bag) in LABELS.items():
    name = f'TREC, {count:,} labels'
    trivial = {minilm.CLASS: frequent, minilm.BAG: bag} if scale == 'small' else {}
    columns[name] = plain | dict(along=('labelled questions of TREC', count), trivial=trivial)
    if scale != 'tiny':
      split = f'train[:{count}shuffled]'
      columns[name]['keys'] = plain['keys'] | {'data.split': split} | (scales.every(100) if scale == 'small' else {})
  mean = {'adapter.pool': 'mean'}
  pairs = [('fine-tuned', 'from scratch'), ('fine-tuned, mean of vectors', 'fine-tuned')]
  pairs += [('fine-tuned', minilm.BAG)] if scale == 'small' else []
  return dict(
    title='MiniLM by the number of labelled texts',
    paper='No table of a paper; the question of Howard and Ruder 2018, Figure 3',
    mark='none',
    rows={
      'fine-tuned': minilm.trunk(scale),
      'fine-tuned, mean of vectors': minilm.trunk(scale, tuning=mean),
      'from scratch': minilm.trunk(scale, start='scratch'),
    },
    columns=columns,
    claims=claims.claims(list(columns), *pairs),
    tuning_seeds=1 if scale == 'tiny' else 5,  # three did not decide: from scratch the seeds differ by 40 points
  )
