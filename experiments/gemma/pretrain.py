"""Gemma: Gemma team 2024, "Gemma: Open Models Based on Gemini Research and Technology", §2.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=256000 \
    --specials=gpt2 --out=runs/vocab/gemma
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
  common.read_c4(c, 'gemma', length=LENGTH, batch=BATCH)
  c.model = dict(name='llama', variant=size, overrides=STRUCTURE)
  c.optim = common.llama_adam(rate)
  return common.quick(c, arg)
