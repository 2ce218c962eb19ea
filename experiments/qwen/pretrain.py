"""Qwen2 and Qwen3: Yang et al. 2024, "Qwen2 Technical Report", §2.2, and 2025, "Qwen3 Technical Report", §2.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=151643 \
    --specials=gpt2 --out=runs/vocab/qwen
plm-jax train --config=experiments/qwen/pretrain.py:qwen2-0.5b --workdir=runs/qwen/qwen2-0.5b

Hardware: not published.
Expect: a loss that falls through the run; the scores of the paper are of its own mix of text.

Arguments: a size (qwen2-0.5b, qwen2-1.5b, qwen2-7b, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b), `quick`.
Differs from the paper: C4 for texts that are not published, in one stage for three; rate, batch and schedule are not
published and are those of LLaMA; byte-level BPE of the same size, trained on C4.
"""

from experiments import common

# size: (peak rate, tokens)
SIZES = {
  'qwen2-0.5b': (3e-4, 12_000_000_000_000),
  'qwen2-1.5b': (3e-4, 7_000_000_000_000),
  'qwen2-7b': (3e-4, 7_000_000_000_000),
  'qwen3-0.6b': (3e-4, 36_000_000_000_000),
  'qwen3-1.7b': (3e-4, 36_000_000_000_000),
  'qwen3-4b': (3e-4, 36_000_000_000_000),
  'qwen3-8b': (3e-4, 36_000_000_000_000),
}
BATCH, LENGTH = 2**22, 4096  # tokens of a batch and of a row
# of the rows of the model already, repeated for `quick`
STRUCTURE = dict(qwen2=dict(qkv_bias=True), qwen3=dict(qk_norm='head'))


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, tokens = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=tokens // BATCH)
  common.read_c4(c, 'qwen', length=LENGTH, batch=BATCH)
  c.model = dict(name='llama', variant=size, overrides=STRUCTURE[size.partition('-')[0]])
  c.optim = common.llama_adam(rate)
  return common.quick(c, arg)
