"""Mistral: Jiang et al. 2023, "Mistral 7B", §2: grouped keys and a sliding window of 4,096 tokens.

plm-jax vocab train --source=tfds:c4/en --name=byte_bpe --size=32000 --specials=gpt2 --out=runs/vocab/mistral
plm-jax train --config=experiments/mistral/pretrain.py:mistral-7b --workdir=runs/mistral/mistral-7b

Hardware: not published. A slice of v5p:4x8x8 trains LLaMA of this size in 10.6 days.
Expect: a loss that falls through the run; the scores of the paper are of its own mix of text.

Arguments: a size (mistral-7b), `quick`.
Differs from the paper: data, batches, rate and number of tokens are not published. Here they are those of LLaMA, on C4;
byte-level BPE of the same size for SentencePiece with byte fallback.
"""

from experiments import common

# size: (peak rate, tokens)
SIZES = {'mistral-7b': (3e-4, 1_000_000_000_000)}
BATCH, LENGTH = 2**22, 8192  # tokens of a batch and of a row
# of the rows of the model already, repeated for `quick`
STRUCTURE = dict(window=4096)


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, tokens = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=tokens // BATCH)
  c.vocab = dict(name='byte_bpe', path=common.vocab('mistral'))
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
