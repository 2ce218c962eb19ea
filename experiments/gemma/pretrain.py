"""Gemma: Gemma team 2024, "Gemma: Open Models Based on Gemini Research and Technology", §2.

plm-jax vocab train --source=tfds:c4/en --name=byte_bpe --size=256000 --specials=gpt2 --out=runs/vocab/gemma
plm-jax train --config=experiments/gemma/pretrain.py:gemma-2b --workdir=runs/gemma/gemma-2b

Hardware: 512 TPU v5e chips for gemma-2b and 4,096 for gemma-7b (§3).
Expect: a loss that falls through the run; the scores of the paper are of its own mix of text.

Arguments: a size (gemma-2b, gemma-7b), `quick`.
Differs from the paper: C4 for a mix of web pages, mathematics and code; the optimiser is not published and is that
of LLaMA; byte-level BPE of the same size for SentencePiece with byte fallback.
"""

from experiments import common

# size: (peak rate, tokens)
SIZES = {'gemma-2b': (3e-4, 3_000_000_000_000), 'gemma-7b': (3e-4, 6_000_000_000_000)}
BATCH, LENGTH = 2**22, 8192  # tokens of a batch and of a row
# of the rows of the model already, repeated for `quick`
STRUCTURE = dict(scaling='gemma', activation='gelu_tanh', tied=True)


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, tokens = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=tokens // BATCH)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gemma'))
  c.model = dict(name='llama', variant=size, overrides=STRUCTURE)
  c.objective = dict(name='causal_lm', packing='stream')
  c.data = dict(name='stream', path='tfds:c4/en', layout='stream', length=LENGTH, batch_size=BATCH // LENGTH)
  c.optim = dict(
    name='adamw',
    rate=rate,
    schedule='cosine',
    warmup=2000,
    floor=0.1,
    decay=common.no_decay_on_norms(0.1),
    clip=1.0,
    b1=0.9,
    b2=0.95,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='full')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
