"""GPT-BERT: masked and causal language modelling by one network: Charpentier and Samuel 2024, §2 and §3.

plm-jax vocab train --source=data/babylm --name=byte_bpe --size=16384 --out=runs/vocab/babylm
plm-jax train --config=experiments/gpt_bert/pretrain.py --workdir=runs/gpt_bert/base
plm-jax evaluate --config=experiments/gpt_bert/pretrain.py:lm --weights=runs/gpt_bert/base --workdir=runs/gpt_bert/lm

data/babylm has train.txt and validation.txt. `fill` and `score` of the run are those of a masked model. A folder that
`plm-jax convert export` writes generates and scores from left to right with "is_decoder": true in its config.json, as
the published ones do (ltg/gpt-bert-babylm-base, ltg/gpt-bert-babylm-small).

Hardware: one GPU, some hours for `small`.
Expect (BabyLM 2024; BLiMP, supplement, EWoK, GLUE): 100 M words 86.1, 76.8, 58.4, 81.5; 10 M words 81.2, 69.4, 54.6,
76.5.

Arguments: `quick`; a size, `base` or `small`; `masked` or `causal`, one kind of rows only; `lm`, the network as a
causal language model, for evaluation.
Differs from the paper: sequences of 128 tokens and one batch size throughout; masks of 15 % from the start; all initial
feed-forward kernels of one scale; no dropout in the head; no average of parameters.
"""

from experiments import common

SIZES = {'base': 'babylm', 'small': 'babylm-small'}
KINDS = {'mixed': 0.0625, 'masked': 0.0, 'causal': 1.0, 'lm': 1.0}


def get_config(arg=''):
  """Takes `quick`, a size, and a kind of rows or `lm`."""
  size, kind = common.chosen(arg, tuple(SIZES)), common.chosen(arg, tuple(KINDS))
  c = common.run(arg, choices=(*SIZES, *KINDS), steps=15_625)
  c.vocab = dict(name='byte_bpe', path=common.vocab(SIZES[size]))
  c.model = dict(name='gpt_bert', variant=f'gpt-bert-{size}')
  c.objective = dict(
    name='gpt_bert',
    causal=KINDS[kind],
    where=dict(name='ngram', rate=0.15, max_words=3),
    edit=dict(name='bert_80_10_10'),
    z_loss=1e-4,
  )
  if kind == 'lm':
    c.model.overrides = dict(causal=True)
    c.objective = dict(name='causal_lm')
  c.data = dict(name='stream', path='data/babylm', length=128, batch_size=32_768)
  c.optim = dict(
    name='lamb',
    rate=1e-2,
    schedule='cosine',
    floor=0.1,
    warmup=0.016,
    decay=(*common.NO_DECAY_ON_NORMS[:-1], ('.*', 0.1)),
    clip=2.0,
    b1=0.9,
    b2=0.98,
  )
  c.sharding = dict(mesh=dict(data=-1))
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
