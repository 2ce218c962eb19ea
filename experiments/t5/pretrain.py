"""T5: the unsupervised objectives that it compares in base size (Raffel et al. 2020, §3.1 and §3.3, Tables 4 to 7), and
the five sizes of its final models (§3.7).

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=32000 \
    --specials=roberta --out=runs/vocab/t5
plm-jax train --config=experiments/t5/pretrain.py --workdir=runs/t5/pretrain
plm-jax train --config=experiments/t5/pretrain.py:deshuffle --workdir=runs/t5/deshuffle

Hardware: slices of Cloud TPU pods; 2^19 steps of 2^16 tokens. Slices: v5e:4x4, 9.2 hours by cycles; `large` v5e:8x8,
6.8 days at 40 % of peak, cycles unknown; `3b` v5p:4x4x4, 11.5 days at 40 % of peak, cycles unknown; `11b` v5p:4x8x8,
11.5 days at 40 % of peak, cycles unknown. A lost chip costs at most 11, 16 (`large`), 17 (`3b`) or 17 (`11b`) minutes.
Expect, fine-tuned (validation): GLUE / CNN-DM / SQuAD / SuperGLUE of `iid` 83.28 / 19.24 / 80.88 / 71.36, `prefix_lm`
80.69 / 18.94 / 77.99 / 65.27, `bert` 82.96 / 19.17 / 80.65 / 69.85, `deshuffle` 73.17 / 18.59 / 67.61 / 58.47, `mass`
82.32 / 19.16 / 80.10 / 69.28, `drop` 84.44 / 19.31 / 80.52 / 68.67, `span3` 83.49 / 19.62 / 81.84 / 72.53.

Arguments: `quick` and one objective: `span3` (default: span corruption as in the final models), `span2`, `span5`,
`span10`; `iid` (the paper's baseline: replace corrupted spans), `iid10`, `iid25`, `iid50` of other rates; `prefix_lm`,
`bert`, `deshuffle`, `mass`, `drop`. A size, `small`, `base`, `large`, `3b` or `11b`, trains for the million steps of
2,048 rows of the final models; without one it is base for 2^19 steps of 128 rows.

Differs from the paper: the final models saw supervised tasks too, here only text; byte-level BPE with 100 sentinels
behind it for SentencePiece; the mask token stands for the sentinel that `bert` and `mass` write at every corrupted
token.
"""

from experiments import common

# tokens of a row whose inputs fill 512: one more and they would not fit
LENGTHS = {'span3': 568, 'span2': 552, 'span5': 581, 'span10': 591}
OBJECTIVES = {
  **{name: dict(where=dict(name='exact_spans', rate=0.15, mean=float(name[4:]))) for name in LENGTHS},
  'iid': dict(where=dict(name='iid_spans', rate=0.15)),
  'iid10': dict(where=dict(name='iid_spans', rate=0.10)),
  'iid25': dict(where=dict(name='iid_spans', rate=0.25)),
  'iid50': dict(where=dict(name='iid_spans', rate=0.50)),
  'prefix_lm': dict(where=dict(name='prefix'), edit=dict(name='drop'), target='chosen'),
  'bert': dict(where=dict(name='iid', rate=0.15), edit=dict(name='bert_80_10_10', mask=0.9, random=0.1), target='text'),
  'deshuffle': dict(
    rearrange=(dict(name='deshuffle'),), where=dict(name='iid', rate=0.0), edit=dict(name='drop'), target='text'
  ),
  'mass': dict(where=dict(name='iid', rate=0.15), edit=dict(name='to_mask'), target='text'),
  'drop': dict(where=dict(name='iid', rate=0.15), edit=dict(name='drop'), target='chosen'),
}
FINAL = {  # how the sizes of §3.7 lie on devices
  'small': dict(mesh=dict(data=-1), rules='data'),
  'base': dict(mesh=dict(data=-1), rules='data'),
  'large': dict(mesh=dict(data=-1), rules='fsdp'),
  '3b': dict(mesh=dict(data=-1), rules='fsdp'),
  '11b': dict(mesh=dict(data=-1, model=4), rules='fsdp_tensor'),
}


def get_config(arg=''):
  """Takes `quick`, one of `OBJECTIVES` and a size."""
  name = common.chosen(arg, tuple(OBJECTIVES))
  size = common.either(arg, tuple(FINAL))
  c = common.run(arg, choices=(*OBJECTIVES, *FINAL), steps=2**19 if size is None else 1_000_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('t5'), extra=common.SENTINELS)
  c.model = dict(name='t5', variant=f't5-{size or "base"}')
  c.objective = dict(name='denoise_seq2seq', packing='stream', **OBJECTIVES[name])
  rows = 128 if size is None else 2_048
  c.data = dict(
    name='stream', path=common.corpus('web'), layout='stream', end='', length=LENGTHS.get(name, 511), batch_size=rows
  )
  c.optim = dict(name='adafactor', rate=0.01, schedule='inverse_sqrt', hold=10_000)
  c.sharding = FINAL[size or 'base']
  c.execution = dict(dtype='bfloat16', layers='auto') if size is None else dict(dtype='bfloat16', remat='full')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
