"""Pythia: Biderman et al. 2023, "Pythia: A Suite for Analyzing Large Language Models", §2; a GPT-NeoX of 2022.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=50304 \
    --specials=gpt2 --out=runs/vocab/pythia
plm-jax train --config=experiments/pythia/pretrain.py:pythia-70m --workdir=runs/pythia/pythia-70m

Hardware: 32 A100 GPUs, 16 hours for pythia-70m; 256 GPUs, 12 days for pythia-12b (the appendix on training hardware).
Expect: a loss that falls through the run; the scores of the paper are of its own mix of text.

Arguments: a size (pythia-70m, pythia-160m, pythia-410m, pythia-1b, pythia-1.4b, pythia-2.8b, pythia-6.9b, pythia-12b),
`quick`.
Differs from the paper: C4 for the Pile, and a tokenizer of the same kind and size trained on C4.
"""

from experiments import common

# size: (peak rate, tokens)
SIZES = {
  'pythia-70m': (1e-3, 300_000_000_000),
  'pythia-160m': (6e-4, 300_000_000_000),
  'pythia-410m': (3e-4, 300_000_000_000),
  'pythia-1b': (3e-4, 300_000_000_000),
  'pythia-1.4b': (2e-4, 300_000_000_000),
  'pythia-2.8b': (1.6e-4, 300_000_000_000),
  'pythia-6.9b': (1.2e-4, 300_000_000_000),
  'pythia-12b': (1.2e-4, 300_000_000_000),
}
BATCH, LENGTH = 2**21, 2048  # tokens of a batch and of a row
# of the rows of the model already, repeated for `quick`
STRUCTURE = dict(parts='neox', parallel=True, rotary_share=0.25, qkv_bias=True, out_bias=True, mlp_bias=True)


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, tokens = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=tokens // BATCH)
  common.read_c4(c, 'pythia', length=LENGTH, batch=BATCH)
  c.model = dict(name='llama', variant=size, overrides=STRUCTURE)
  c.optim = common.llama_adam(rate, warmup=1430)
  return common.quick(c, arg)
