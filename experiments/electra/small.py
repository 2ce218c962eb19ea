"""ELECTRA small, and what the paper compares it with: Clark et al. 2020, §2 and §3; Tables 1 and 5.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/electra/small.py --workdir=runs/electra/small

Hardware: the paper took 4 days on one V100. Slice: v5e:2x2, 3.8 hours by cycles. A lost chip costs at most 3 minutes.
Expect, fine-tuned (GLUE dev average, Table 1): 79.9, against 75.1 of a BERT of this size.
Table 5 has the comparisons at the size of base: ELECTRA 85.0, all_tokens_mlm 84.3, replace_mlm 82.4, masked 82.4, BERT
82.2 (objective mlm).

Arguments: `quick`, or one of
  masked, replace_mlm, all_tokens_mlm     what the trunk learns (§3.4)
  untied, tied                            nothing or everything shared (§3.2; tied needs networks of one size)
  uniform, adversarial                    random replacements; a generator that learns to fool (§3.2, appendix F)
  two_stage                               the discriminator alone, after a run of objective mlm at the same size:
  plm-jax train --config=experiments/electra/small.py:two_stage --workdir=runs/electra/two-stage
  with its folder, runs/electra/generator, in init_from.

Differs from the paper: English Wikipedia without BooksCorpus, and a vocabulary trained on it; pieces of documents
packed side by side with attention kept inside them; a position that is drawn twice counts once.
"""

from experiments import common

PREDICT = ('masked', 'replace_mlm', 'all_tokens_mlm')
COMPARED = ('electra', *PREDICT, 'untied', 'tied', 'uniform', 'adversarial', 'two_stage')


def get_config(arg=''):
  """Takes `quick` and one of `COMPARED`."""
  compared = common.chosen(arg, COMPARED)
  c = common.run(arg, choices=COMPARED, steps=1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='electra-small')
  generator = dict(name='bert', variant='electra-small-generator')
  objective = dict(
    name='rtd',
    generator=generator,
    where=dict(name='with_replacement', rate=0.15, max_count=19),
    predict=compared if compared in PREDICT else 'all',
    weight=1.0 if compared in PREDICT[1:] else 50.0,
  )
  changes = {
    'untied': dict(sharing='none'),
    'tied': dict(sharing='all', generator=None),
    'uniform': dict(sampling='uniform', generator=None),
    'adversarial': dict(learning='adversarial'),
    'two_stage': dict(sharing='none', learning='frozen', generator=dict(name='bert', variant='electra-small')),
  }
  c.objective = dict(objective, **changes.get(compared, {}))
  c.data = dict(name='stream', path=common.corpus('wiki'), length=128, batch_size=128)
  c.optim = common.bert_adam(5e-4, warmup=10_000, schedule='gpt')  # warmup scales the decayed rate, as released
  if compared == 'two_stage':
    source = 'runs/electra/generator'
    c.optim.scale = (('(generator|mlm)/.*', None), ('.*', 1.0))
    c.init_from = (dict(source=source, to='generator'), dict(source=source, from_='mlm', to='mlm'), dict(source=source))
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16', layers='auto')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
