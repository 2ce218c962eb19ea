"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3; Table 2, all sizes.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=50257 \
    --specials=gpt2 --out=runs/vocab/gpt2
plm-jax train --config=experiments/gpt/gpt2.py:gpt2-medium --workdir=runs/gpt/gpt2-medium

Hardware: not published. Slices: `gpt2` v5e:4x4, 9.9 hours at 40 % of peak; `gpt2-xl` v5e:8x8, 30 hours at 40 % of peak.
A lost chip costs at most 16 (`gpt2`) or 17 (`gpt2-xl`) minutes.
Expect: perplexity, zero-shot, of WikiText-2 29.4 / 22.8 / 19.9 / 18.3 from the smallest to the largest (Table 3).

Arguments: a size (gpt2, gpt2-medium, gpt2-large, gpt2-xl; 124M, 355M, 774M, 1558M parameters), `quick`.
Differs from the paper: its rates ("tuned by hand for each size"), steps and weight decay are not published. Here they
are those of GPT-3 at the same size (Brown et al. 2020, Table 2.1 and appendix B): cosine to 10 %, decay .1, clip 1,
100k steps of 0.5M tokens, which is about five times the 40 GB of WebText. C4's WebText-like part stands for WebText,
and the vocabulary is trained on it; which parameters decay is not said: here all but biases and the scales of norms.
"""

from experiments import common

RATES = {'gpt2': 6e-4, 'gpt2-medium': 3e-4, 'gpt2-large': 2.5e-4, 'gpt2-xl': 2e-4}


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(RATES))
  c = common.run(arg, choices=tuple(RATES), steps=100_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt2'))
  c.model = dict(name='gpt', variant=size)
  c.objective = dict(name='causal_lm', packing='stream')
  c.data = dict(name='stream', path=common.corpus('web'), layout='stream', length=1024, batch_size=512)
  c.accumulate = 4 if size == 'gpt2' else 1  # what fits its slice without computing states twice
  c.optim = dict(
    name='adamw',
    rate=RATES[size],
    schedule='cosine',
    warmup=715,  # 375M tokens
    floor=0.1,
    decay=common.no_decay_on_norms(0.1),
    clip=1.0,
    b1=0.9,
    b2=0.95,
    eps=1e-8,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='data' if size == 'gpt2' else 'fsdp')
  c.execution = dict(dtype='bfloat16', layers='auto') if size == 'gpt2' else dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
