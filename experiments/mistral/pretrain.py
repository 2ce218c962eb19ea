"""Mistral: Jiang et al. 2023, "Mistral 7B", §2: grouped keys and a sliding window of 4,096 tokens.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=32000 \
    --specials=gpt2 --out=runs/vocab/mistral
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
  common.read_c4(c, 'mistral', length=LENGTH, batch=BATCH)
  c.model = dict(name='llama', variant=size, overrides=STRUCTURE)
  c.optim = common.llama_adam(rate)
  return common.quick(c, arg)
