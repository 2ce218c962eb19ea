"""SpanBERT: masked spans and their boundaries, one segment a row: Joshi et al. 2019, §3 and §4.2; Tables 6 and 7.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=28996 \
    --cased --out=runs/vocab/bert-cased
plm-jax train --config=experiments/spanbert/pretrain.py --workdir=runs/spanbert/large

Hardware: the paper took 15 days on 32 V100 GPUs. Slice, cycles unknown: v5e:8x8, 35 hours at 40 % of peak. A lost chip
costs at most 9 minutes.
Expect, fine-tuned after 1.2M steps (SQuAD 2.0 F1, MNLI-m, QNLI): 86.8, 87.6, 93.9; with `mlm` 86.7, 87.3, 93.8.

Arguments: `quick`; `base` or `large`; `mlm` leaves the span boundary objective out (the row "span 1seq").
Differs from the paper: English Wikipedia without BooksCorpus, and a cased vocabulary trained on it in place of BERT's.
All parameters decay, as in its copy of fairseq, at the paper's .1; the released command has .01.
"""

from experiments import common

SIZES = ('large', 'base')


def get_config(arg=''):
  """Takes `quick`, a size and `mlm`."""
  size = common.chosen(arg, SIZES)
  c = common.run(arg, choices=(*SIZES, 'mlm'), steps=2_400_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-cased'))
  c.model = dict(name='bert', variant=f'spanbert-{size}')
  masks = dict(
    where=dict(name='geometric_spans', rate=0.15, probability=0.2, max_words=10),
    edit=dict(name='bert_80_10_10', per='span'),
    masking='dynamic',
  )
  c.objective = dict(name='mlm', **masks) if 'mlm' in common.words(arg) else dict(name='span_boundary', **masks)
  c.data = dict(name='stream', layout='rows', path=common.corpus('wiki'), length=512, batch_size=256)
  c.optim = dict(
    name='adamw', rate=1e-4, schedule='linear', warmup=10_000, decay=0.1, clip=1.0, b1=0.9, b2=0.999, eps=1e-8
  )
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
