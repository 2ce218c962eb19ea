"""What is fine-tuning worth to a trunk that knows English? MiniLM, 22.7 M parameters, on twelve tasks.

bash launch/released.sh
plm-jax tables experiments/tables/minilm.py --scale=small --workdir=runs/tables --data=../shared/data
python -m benchmarks.bag_of_words experiments/tables/minilm.py --scale=small --data=../shared/data

The first makes runs/released/minilm, which is sentence-transformers/all-MiniLM-L6-v2: BERT of six layers of 384. Its
own pooler is fine-tuned, not the mean that sentence vectors take. The last prints the scores without a network.
Small: TREC, SST-2, IMDb and EWT read 2,000 labelled examples once, in 125 updates of 16. The others take 155 to 500
updates of all examples, minutes of a core. SNLI and MNLI are tested on 2,000 pairs.
Paper: all examples, three epochs.
"""

from experiments.tables.shared import claims, minilm

SMALL = '2,000 labelled examples, read once in 125 updates; pairs, CoLA, WNUT-17 and SQuAD: all examples, 155 to 500.'
ONE_CLASS = dict.fromkeys(('MRPC', 'RTE'), 'one run of 125 updates answered with one class')


def get_table(scale):
  """Takes a scale."""
  columns = minilm.columns(scale, *minilm.TASKS)
  without = {} if scale == 'paper' else ONE_CLASS
  return dict(
    title='MiniLM on twelve tasks, pre-trained and from scratch',
    paper='No table of a paper: Wang et al. 2020 distilled the trunk, Reimers and Gurevych 2019 taught it sentences',
    mark='none',
    rows={'fine-tuned': minilm.trunk(scale), 'from scratch': minilm.trunk(scale, start='scratch', without=without)},
    columns=columns,
    claims=claims.claims([name for name in columns if name not in without], ('fine-tuned', 'from scratch'))
    + [
      dict(column=name, better='fine-tuned', than=than) for name in columns for than in columns[name].get('trivial', {})
    ],
    tuning_seeds=1 if scale == 'tiny' else 3,
    note=SMALL if scale == 'small' else '',
  )
