"""SmolLM3: Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner".

Every fourth layer has no positions.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=128256 \
    --specials=gpt2 --out=runs/vocab/smollm3
plm-jax train --config=experiments/smollm3/pretrain.py:smollm3-3b --workdir=runs/smollm3/smollm3-3b

Hardware: 384 H100 GPUs, 24 days (the report).
Expect: a loss that falls through the run; the scores of the paper are of its own mix of text.

Arguments: a size (smollm3-3b), `quick`.
Differs from the paper: C4 for a mix in three stages; a cosine for a rate that is constant and falls in the last tenth;
the token table decays; byte-level BPE of the same size, trained on C4, for that of LLaMA 3.2.
"""

from experiments import common

# size: (peak rate, tokens)
SIZES = {'smollm3-3b': (2e-4, 11_200_000_000_000)}
BATCH, LENGTH = 2_359_296, 4096  # tokens of a batch and of a row
# of the rows of the model already, repeated for `quick`
STRUCTURE = dict(unrotated=tuple(range(3, 36, 4)), tied=True)


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, tokens = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=tokens // BATCH)
  common.read_c4(c, 'smollm3', length=LENGTH, batch=BATCH)
  c.model = dict(name='llama', variant=size, overrides=STRUCTURE)
  c.optim = common.llama_adam(rate)
  return common.quick(c, arg)
