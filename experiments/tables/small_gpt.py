"""What is pre-training worth to a GPT of 5 M parameters? Tasks, from what it learned and from fresh parameters.

plm-jax tables experiments/tables/small_gpt.py --scale=small --workdir=runs/tables --data=../shared/data

`small_gpt.py:medium` asks a GPT of 30 M parameters, on a GPU. The network is that of
experiments/small/pretrain.py:gpt, whose head says which text and vocabulary it needs.
"""

from experiments.tables.shared import downstream, scales

CLASS = 'most frequent class'
SST2 = {CLASS: 50.9, 'bag of words': 79.7}
OPTIONS = dict(data__length=96, data__buckets=(32, 64), data__batch_size=8)
# rows of 64 tokens are what the network learned, and of 384 the medium one: longer ones lose their begin
PROMPT = {False: dict(data__length=56), True: dict(data__length=376)}  # by whether it is medium
SUMMARY = dict(data__length=320, data__target_length=48, data__batch_size=16)


def get_table(scale, arg=''):
  """Takes a scale and `medium`."""
  prompt = PROMPT[downstream.is_medium(arg)] | dict(data__target_length=8, data__batch_size=32)

  def task(config, *words, folder, metric, steps, **rest):
    rest |= scales.IN_CACHE
    return downstream.task(scale, 'gpt', config, *words, folder=folder, metric=metric, steps=steps, **rest)

  columns = {
    'SST-2': task(
      'gpt/classify.py', 'sst2', folder='glue_sst2', metric='validation/accuracy', steps=500, trivial=SST2
    ),
    'COPA': task(
      'gpt/choose.py', 'copa', folder='super_glue_copa', metric='validation/accuracy', steps=200,
      trivial={CLASS: 45.0}, **OPTIONS,
    ),
    'SciTLDR': task(
      'gpt/summarise.py', 'scitldr', folder='scitldr_abstract', metric='test/rouge1', steps=200, times=1,
      trivial={'first sentence': 31.3}, **SUMMARY,
    ),
    'COPA, zero-shot': downstream.asked(
      scale, 'gpt', 'gpt/prompt.py', 'copa', folder='super_glue_copa', metric='validation/accuracy',
      trivial={'chance': 50.0}, **prompt,
    ),
    'LAMBADA, zero-shot': downstream.asked(
      scale, 'gpt', 'gpt/prompt.py', 'lambada', folder='lambada', metric='test/answer_accuracy', **prompt
    ),
  }  # fmt: skip
  return downstream.table(scale, 'small/pretrain.py', 'gpt', columns, medium=downstream.is_medium(arg))
