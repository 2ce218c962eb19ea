"""Ways to adapt one trunk: which layers are read, what trains and when, at what rate, from which task (Qiu et al. 2020,
"Pre-trained Models for Natural Language Processing: A Survey", §5.2 and §5.3), with BERT on GLUE.

plm-jax train --config=experiments/bert/strategies.py:rte,gradual --workdir=runs/bert/rte-gradual
plm-jax train --config=experiments/bert/glue.py:mnli --workdir=runs/bert/mnli
plm-jax train --config=experiments/bert/strategies.py:rte,intermediate --workdir=runs/bert/rte-mnli

  full             all parameters at one rate
  features         the trunk is frozen; its last layer, pooled by the mean, is classified; --config.adapter.layer=0
                   reads the embeddings, 1 to 11 the layers: a sweep shows which layer holds most of the task
  concat, sum      likewise, the last four layers side by side, or added
  mix              likewise, all layers, by weights that are learned
  layerwise        rates fall by .8 a layer, embeddings included
  gradual          the head trains first; a layer more from the top joins every fifteenth of the run (ULMFiT, 2018)
  discriminative   `gradual`, and rates fall by 2.6 a layer
  intermediate     `full`, from a trunk that was fine-tuned on MNLI before; to='head' as well takes its head, where
                   both tasks have the same classes

Hardware: one accelerator, minutes.
Expect: RTE (test) 66.4 by `full` (Devlin et al. 2018, Table 1); `intermediate` above it, as RoBERTa and BART start RTE
from MNLI; the frozen ones below. The survey measures none of them.

Arguments: a task (sst2, cola, mrpc, stsb, qqp, mnli, qnli, rte), one of the rows above, `quick`.
Differs from the paper: the trunk is that of base.py; rates of frozen trunks are ours.
"""

from experiments import common

LAST_FOUR, ALL = (-4, -3, -2, -1), (*range(12), -1)
FROZEN = (('trunk/.*', None), ('.*', 1.0))
POOLER = ('trunk/pooler/.*', 1.0)  # above the layers
# name: settings of the adapter, multipliers of the rate
STRATEGIES = {
  'full': ({}, (('.*', 1.0),)),
  'features': (dict(frozen=True, pool='mean'), FROZEN),
  'concat': (dict(frozen=True, pool='mean', layers=LAST_FOUR), FROZEN),
  'sum': (dict(frozen=True, pool='mean', layers=LAST_FOUR, join='sum'), FROZEN),
  'mix': (dict(frozen=True, pool='mean', layers=ALL, join='mix'), FROZEN),
  'layerwise': (
    {},
    (POOLER, ('trunk/layers/.*', dict(layerwise=0.8)), ('trunk/.*', dict(layerwise=0.8, below=1)), ('.*', 1.0)),
  ),
  'gradual': ({}, (POOLER, ('trunk/.*', dict(gradual=1 / 15)), ('.*', 1.0))),
  'discriminative': ({}, (POOLER, ('trunk/.*', dict(gradual=1 / 15, layerwise=1 / 2.6)), ('.*', 1.0))),
  'intermediate': ({}, (('.*', 1.0),)),
}


def get_config(arg=''):
  """Takes a task, a strategy and `quick`."""
  task, name = common.chosen(arg, tuple(common.GLUE)), common.chosen(arg, tuple(STRATEGIES))
  adapter, scale = STRATEGIES[name]
  c = common.run(arg, choices=(*common.GLUE, *STRATEGIES), epochs=3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-base')
  c.data = common.glue(task, length=128, batch_size=32, layout='bert')
  c.adapter = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], dropout=0.1, **adapter)
  rate = 1e-3 if scale is FROZEN else 2e-5
  c.optim = common.bert_adam(rate, warmup=0.1, scale=scale)
  source = 'runs/bert/mnli' if name == 'intermediate' else 'runs/bert/base'
  c.init_from = (dict(source=source, from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
