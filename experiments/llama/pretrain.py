"""LLaMA and LLaMA 2: Touvron et al. 2023, §2 of "Open and Efficient Foundation Language Models" and of "Llama 2".

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=32000 \
    --specials=gpt2 --out=runs/vocab/llama
plm-jax train --config=experiments/llama/pretrain.py:llama-7b --workdir=runs/llama/llama-7b
plm-jax train --config=experiments/llama/pretrain.py:llama2-70b --workdir=runs/llama/llama2-70b

Hardware: 2,048 A100 GPUs, 21 days for llama-65b (§2.4). Slices, cycles unknown: `llama-7b` v5p:4x8x8, 10.6 days at 40 %
of peak; `llama-65b` v5p:8x8x16, 35 days at 40 % of peak. A lost chip costs at most 20 (`llama-7b`) or 16 (`llama-65b`)
minutes.
Expect, without a gradient step: ARC (easy) 72.8 / 74.8 / 80.0 / 78.9 % from llama-7b to llama-65b (Table 3).

Arguments: a size (llama-7b, llama-13b, llama-33b, llama-65b, llama2-7b, llama2-13b, llama2-70b), `quick`.
Differs from the paper: C4 alone for the mix of §2.1, of which it was 15 %, and for LLaMA 2's, which is not published;
byte-level BPE of the same size for SentencePiece's with byte fallback. Which parameters decay is not said: here all but
the scales of norms.
"""

from experiments import common

# size: (peak rate, tokens, longest row): a batch has 4M tokens
SIZES = {
  'llama-7b': (3e-4, 1_000_000_000_000, 2048),
  'llama-13b': (3e-4, 1_000_000_000_000, 2048),
  'llama-33b': (1.5e-4, 1_400_000_000_000, 2048),
  'llama-65b': (1.5e-4, 1_400_000_000_000, 2048),
  'llama2-7b': (3e-4, 2_000_000_000_000, 4096),
  'llama2-13b': (3e-4, 2_000_000_000_000, 4096),
  'llama2-70b': (1.5e-4, 2_000_000_000_000, 4096),
}
BATCH = 2**22


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, tokens, length = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=tokens // BATCH)
  common.read_c4(c, 'llama', length=length, batch=BATCH)
  c.model = dict(name='llama', variant=size)
  eps = 1e-5 if size.startswith('llama2') else 1e-8  # of the first model not published
  c.optim = common.llama_adam(rate, eps=eps)
  if size == 'llama-33b':  # 1,024 chips do not divide its width of 6,656, 256 do
    c.sharding = dict(mesh=dict(data=-1, model=4), rules='fsdp_tensor_sequence')
  return common.quick(c, arg)
