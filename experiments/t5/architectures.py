"""The architectures that T5 compares, each with denoising or language modelling: Raffel et al. 2020, §3.2; Table 2.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=32000 \
    --specials=roberta --out=runs/vocab/t5
plm-jax train --config=experiments/t5/architectures.py:prefix --workdir=runs/t5/prefix
plm-jax train --config=experiments/t5/architectures.py:prefix,lm --workdir=runs/t5/prefix_lm

Hardware: slices of Cloud TPU pods; 2^19 steps of 2^16 tokens. Slices, at 40 % of peak: v5e:4x4, 7.7 hours, `shared`
likewise; `six` v5e:4x4, 4.1 hours; `prefix` v5e:4x4, 7 hours, `decoder` likewise; `enc_dec,lm` v5e:4x4, 11.4 hours;
`decoder,lm` v5e:4x4, 5.4 hours; `prefix,lm` v5e:4x4, 10.5 hours.
Expect, fine-tuned (validation: GLUE, CNN-DM, SQuAD, SuperGLUE):
  enc_dec         83.28  19.24  80.88  71.36     two stacks of 12 layers
  shared          82.81  18.78  80.63  70.73     the same parameters in both
  six             80.88  18.97  77.59  68.42     two stacks of 6 layers
  decoder         74.70  17.93  61.14  55.02     one stack, from left to right
  prefix          81.82  18.61  78.94  68.11     one stack, inputs seen both ways
  enc_dec,lm      79.56  18.59  76.02  64.29

Arguments: `quick`; an architecture; `lm`, which reads the first part of a text and writes the rest, and with `decoder`
writes all of it, in place of denoising (corrupted spans of 15 % of the tokens, drawn one by one).
Differs from the paper: byte-level BPE with 100 sentinels behind it for SentencePiece. A single stack reads inputs and
targets in one row, each document's targets behind all inputs of the row.
"""

from experiments import common

ARCHITECTURES = {
  'enc_dec': {},
  'shared': dict(structure='shared'),
  'six': dict(num_layers=6),
  'decoder': dict(structure='decoder'),
  'prefix': dict(structure='prefix'),
}
DENOISING = dict(name='denoise_seq2seq', packing='stream', where=dict(name='iid_spans', rate=0.15))
LAST_PART = dict(DENOISING, where=dict(name='prefix'), edit=dict(name='drop'), target='chosen')


def get_config(arg=''):
  """Takes `quick`, one of `ARCHITECTURES`, and `lm`."""
  name, lm = common.chosen(arg, tuple(ARCHITECTURES)), 'lm' in common.words(arg)
  c = common.run(arg, choices=(*ARCHITECTURES, 'lm'), steps=2**19)
  c.vocab = dict(name='byte_bpe', path=common.vocab('t5'), extra=common.SENTINELS)
  c.model = dict(name='t5', variant='t5-base', overrides=ARCHITECTURES[name])
  c.objective = LAST_PART if lm else DENOISING
  if lm and name == 'decoder':
    c.objective = dict(name='causal_lm', packing='stream')
  c.data = dict(name='stream', path=common.corpus('web'), layout='stream', end='', length=511, batch_size=128)
  c.optim = dict(name='adafactor', rate=0.01, schedule='inverse_sqrt', hold=10_000)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
