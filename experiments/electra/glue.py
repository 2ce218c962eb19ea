"""ELECTRA on GLUE by fine-tuning: Clark et al. 2020, §3.1 and appendix B; Tables 1 to 3; settings of the released code.

plm-jax train --config=experiments/electra/glue.py:mnli,base --workdir=runs/electra/mnli

Hardware: one accelerator, minutes to hours.
Expect (mean of the eight tasks on dev): small 79.9, base 85.1, large 89.5; medians of ten runs (--config.seed). A trunk
pre-trained on Wikipedia alone stays below.

One layer classifies [CLS], as in the released code; the class of transformers has two with GELU between them, so that
such a run is exported without its head. `two_layers` trains that head, and is exported with it.

Arguments: a task (mnli, qnli, qqp, rte, sst2, mrpc, cola, stsb, wnli), a trunk (small, base, large), `two_layers`,
`quick`.
Differs from the paper: the small trunk's rate and the layer-wise factor of small are those of the released code; RTE
and STS-B do not begin with what MNLI learnt; WNLI, which the paper leaves out, has the epochs of RTE.
"""

from experiments import common

TASKS = ('mnli', 'qnli', 'qqp', 'rte', 'sst2', 'mrpc', 'cola', 'stsb', 'wnli')
# trunk: (rate, factor from a layer to that below it, layers, width)
TRUNKS = {'small': (3e-4, 0.8, 12, 256), 'base': (1e-4, 0.8, 12, 768), 'large': (5e-5, 0.9, 24, 1024)}


def get_config(arg=''):
  """Takes a task, a trunk, `two_layers` and `quick`."""
  task, trunk = common.chosen(arg, TASKS), common.chosen(arg, tuple(TRUNKS))
  rate, factor, layers, width = TRUNKS[trunk]
  c = common.run(arg, choices=(*TASKS, *TRUNKS, 'two_layers'), epochs=10 if task in ('rte', 'stsb', 'wnli') else 3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant=f'electra-{trunk}')
  c.data = common.glue(task, length=128, batch_size=32, layout='bert')
  c.adapter = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], dropout=0.1)
  if 'two_layers' in common.words(arg):
    c.adapter.update(hidden=width, activation='gelu_erf')
  scale = (
    ('trunk/layers/.*', dict(layerwise=factor, scale=factor**2)),
    ('trunk/.*', factor ** (layers + 2)),
    ('.*', 1.0),
  )
  # warmup scales the decayed rate, as released
  c.optim = common.bert_adam(rate, warmup=0.1, schedule='gpt', scale=scale)
  c.init_from = (dict(source=f'runs/electra/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
