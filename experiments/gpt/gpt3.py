"""GPT-3: Brown et al. 2020, "Language Models are Few-Shot Learners", §2.1 to §2.3 and appendix B; Table 2.1, all sizes.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=50257 \
    --specials=gpt2 --out=runs/vocab/gpt2
plm-jax train --config=experiments/gpt/gpt3.py:gpt3-small --workdir=runs/gpt/gpt3-small
plm-jax train --config=experiments/gpt/gpt3.py:gpt3-xl,local --workdir=runs/gpt/gpt3-xl-local

Hardware: V100 GPUs of a Microsoft cluster. Slices, cycles unknown: `gpt3-small` v5e:8x16, 8 hours at 40 % of peak;
`gpt3-xl` v5e:16x16, 38 hours at 40 % of peak; `gpt3-175b` v5p:8x8x16, 19.9 days at 40 % of peak. A lost chip costs at
most 9 (`gpt3-small`), 16 (`gpt3-xl`) or 31 (`gpt3-175b`) minutes.
Expect, of gpt3-175b without a gradient step or an example: HellaSwag 78.9 %, WinoGrande 70.2 % (§3.1.3, §3.4).

Arguments: a size (gpt3-small, -medium, -large, -xl, -2.7b, -6.7b, -13b, -175b); `local` narrows every second layer to
256 tokens, a width of our own, as the paper's is not published; `quick`.
Differs from the paper: no ramp of the batch from 32k tokens over the first 4 to 12 billion; dense attention without
`local`; C4's WebText-like part stands for its mix of Common Crawl, WebText2, books and Wikipedia; batches are powers of
two of rows but for the largest; the token tables of 13B and 175B are padded to 50,304 rows. Dropout is not reported and
here 0; nor is which parameters decay: here all but biases and the scales of norms. XL has 16 heads and 13B a width of
5,120, where the table misprints 24 and 5,140.
"""

from experiments import common

LENGTH = 2048
# size: (rate, rows of a batch): .5M, 1M, 2M and 3.2M tokens
SIZES = {
  'gpt3-small': (6e-4, 256),
  'gpt3-medium': (3e-4, 256),
  'gpt3-large': (2.5e-4, 256),
  'gpt3-xl': (2e-4, 512),
  'gpt3-2.7b': (1.6e-4, 512),
  'gpt3-6.7b': (1.2e-4, 1024),
  'gpt3-13b': (1e-4, 1024),
  'gpt3-175b': (0.6e-4, 1536),
}


def get_config(arg=''):
  """Takes a size, `local` and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, rows = SIZES[size]
  tokens = rows * LENGTH
  c = common.run(arg, choices=(*SIZES, 'local'), steps=300_000_000_000 // tokens)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt2'))
  local = dict(local_window=256) if 'local' in common.words(arg) else {}
  large = size in ('gpt3-13b', 'gpt3-175b')
  whole = dict(vocab_multiple=128) if large else {}  # 8 devices cut 50,304 rows
  c.model = dict(name='gpt', variant=size, overrides=dict(dropout=0.0, attention_dropout=0.0, **local, **whole))
  c.objective = dict(name='causal_lm', packing='stream')
  c.data = dict(name='stream', path=common.corpus('web'), layout='stream', length=LENGTH, batch_size=rows)
  c.optim = dict(
    name='adamw',
    rate=rate,
    schedule='cosine',
    warmup=375_000_000 // tokens,
    floor=0.1,
    until=260 / 300,  # billions of tokens
    decay=common.no_decay_on_norms(0.1),
    clip=1.0,
    b1=0.9,
    b2=0.95,
    eps=1e-8,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  if size == 'gpt3-175b':  # 1,024 chips do not divide its 1,536 rows
    c.sharding = dict(mesh=dict(data=-1, model=4), rules='fsdp_tensor_sequence')
  c.execution = dict(dtype='bfloat16', remat='full' if large else 'dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
