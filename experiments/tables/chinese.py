"""What are whole-word masks worth to a Chinese BERT? ChnSentiCorp, beside no pre-training and a bag of characters.

plm-jax tables experiments/tables/chinese.py --scale=small --workdir=runs/tables --data=../shared/data

The small network is that of experiments/chinese/pretrain.py:small, whose head says which text and vocabulary it needs.
"""

from experiments.tables.shared import downstream, scales

LINEAR, CLASS = 'bag of characters', 'most frequent class'


def get_table(scale):
  """Takes a scale."""
  column = downstream.task(
    scale, 'bert', 'chinese/classify.py', folder='chnsenticorp', metric='test/accuracy', steps=200,
    trivial={LINEAR: 87.3, CLASS: 50.7}, adapter__pool='mean', data__length=64, data__buckets=(32,),
    data__batch_size=32, **scales.IN_CACHE,
  )  # fmt: skip
  words = dict(config=scales.target(scale, 'chinese/pretrain.py'), published={'ChnSentiCorp': 95.0})
  characters = dict(config=scales.target(scale, 'chinese/pretrain.py', 'characters'), published={'ChnSentiCorp': 94.7})
  versus = dict(
    paper=('from scratch', 'characters'), small=('from scratch', 'characters', LINEAR), tiny=('from scratch',)
  )
  return dict(
    title='Whole-word masks for Chinese on ChnSentiCorp',
    paper='Cui et al. 2019; there a BERT-base reads Wikipedia, and the numbers are means of ten runs',
    mark='A',
    rows={'whole words': words, 'characters': characters, 'from scratch': dict(words, start='scratch', published={})},
    columns={'ChnSentiCorp': column},
    claims=[dict(column='ChnSentiCorp', better='whole words', than=than) for than in versus[scale]],
    tuning_seeds=1 if scale == 'tiny' else 3,
    reference='' if scale == 'tiny' else 'whole words',
    note='Networks read the first 62 characters of a review, the bag of characters reads all. Of the 1,200 test '
    'reviews, 331 are also training reviews.',
  )
