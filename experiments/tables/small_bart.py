"""What is pre-training worth to a BART of 5 M parameters? Tasks, from what it learned and from fresh parameters.

plm-jax tables experiments/tables/small_bart.py --scale=small --workdir=runs/tables --data=../shared/data
plm-jax vocab train --source=../shared/data/multi30k_en_de --text=de --name=byte_bpe --specials=roberta \\
    --size=6000 --out=runs/vocab/de

`small_bart.py:medium` asks a BART of 30 M parameters, on a GPU. The network is that of
experiments/small/pretrain.py:bart, whose head says which text and vocabulary it needs.
"""

from experiments.tables.shared import downstream, scales

SUMMARY = dict(data__length=320, data__target_length=48, data__batch_size=16)
# all parameters train from the first step: both stages of the paper at once, for the network from scratch too
SENTENCE = dict(
  data__length=40,
  data__target_length=40,
  data__buckets=(20, 28),
  data__target_buckets=(20, 28),
  data__batch_size=64,
  adapter__stage='second',
  optim__rate=1e-3,
  optim__clip=1.0,
)
READER = {  # by whether it is medium
  False: dict(num_layers=2, num_heads=4, hidden_dim=256, mlp_dim=1024),
  True: dict(num_layers=4, num_heads=8, hidden_dim=512, mlp_dim=2048),
}


def get_table(scale, arg=''):
  """Takes a scale and `medium`."""

  def task(config, *words, folder, metric, steps, **rest):
    rest |= scales.IN_CACHE
    return downstream.task(scale, 'bart', config, *words, folder=folder, metric=metric, steps=steps, **rest)

  columns = {
    'SST-2': task(
      'bart/glue.py', 'sst2', folder='glue_sst2', metric='validation/accuracy', steps=500,
      trivial={'most frequent class': 50.9, 'bag of words': 79.7},
    ),
    'SciTLDR': task(
      'bart/summarise.py', 'scitldr', folder='scitldr_abstract', metric='test/rouge1', steps=200, times=1,
      trivial={'first sentence': 31.3}, **SUMMARY,
    ),
    'Multi30k': task(
      'bart/translate.py', 'multi30k', 'base', folder='multi30k_en_de', metric='test/bleu', steps=600, times=1,
      trivial={'copy': 0.5}, adapter__source__overrides=READER[downstream.is_medium(arg)], **SENTENCE,
    ),
  }  # fmt: skip
  return downstream.table(scale, 'small/pretrain.py', 'bart', columns, medium=downstream.is_medium(arg))
