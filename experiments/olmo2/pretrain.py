"""OLMo 2: OLMo team 2024, "2 OLMo 2 Furious", §3: norms of outputs, queries and keys.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=100352 \
    --specials=gpt2 --out=runs/vocab/olmo2
plm-jax train --config=experiments/olmo2/pretrain.py:olmo2-7b --workdir=runs/olmo2/olmo2-7b

Hardware: H100 GPUs of two clusters (§2).
Expect: a loss that falls through the run; the scores of the paper are of its own mix of text.

Arguments: a size (olmo2-7b, olmo2-13b, olmo2-1b), `quick`.
Differs from the paper: C4 for OLMo-mix-1124; the first stage of training alone; byte-level BPE of the same size,
trained on C4, for that of GPT-3.5.
"""

from experiments import common

# size: (peak rate, tokens)
SIZES = {
  'olmo2-7b': (3e-4, 3_900_000_000_000),
  'olmo2-13b': (9e-4, 5_000_000_000_000),
  'olmo2-1b': (4e-4, 4_000_000_000_000),
}
BATCH, LENGTH = 2**22, 4096  # tokens of a batch and of a row
# of the rows of the model already, repeated for `quick`
STRUCTURE = dict(norm_placement='output', qk_norm='width')


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, tokens = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=tokens // BATCH)
  common.read_c4(c, 'olmo2', length=LENGTH, batch=BATCH)
  c.model = dict(name='llama', variant=size, overrides=STRUCTURE)
  c.objective.update(z_loss=1e-5)
  c.optim = common.llama_adam(rate)
  return common.quick(c, arg)
