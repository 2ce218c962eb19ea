"""PaLM: Chowdhery et al. 2022, "PaLM: Scaling Language Modeling with Pathways", §2, §3 and §5; all three sizes.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=256000 \
    --specials=gpt2 --out=runs/vocab/palm
plm-jax train --config=experiments/palm/pretrain.py:palm-8b --workdir=runs/palm/palm-8b

Hardware: 6,144 TPU v4 chips for palm-540b (§4). Slices, cycles unknown: `palm-8b` v5p:4x8x8, 10.6 days at 40 % of peak;
`palm-540b` v5p:16x16x16, 39 days at 40 % of peak. A lost chip costs at most 17 (`palm-8b`) or 31 (`palm-540b`) minutes.
Expect: a loss that falls through the run; the scores that the paper prints are of its own mix of text (§3, §6).

Arguments: a size (palm-8b, palm-62b, palm-540b), `quick`.
Differs from the paper: one batch of 2,048 rows for its ramp of 512, 1,024 and 2,048, with as many tokens in all, 780
billion; C4 for its mix of web pages, books, conversations and code; byte-level BPE of the same size for SentencePiece.
"""

from experiments import common

SIZES = ('palm-8b', 'palm-62b', 'palm-540b')
LENGTH, ROWS = 2048, 2048


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, SIZES)
  c = common.run(arg, choices=SIZES, steps=780_000_000_000 // (LENGTH * ROWS))
  c.vocab = dict(name='byte_bpe', path=common.vocab('palm'))
  c.model = dict(name='palm', variant=size)
  c.objective = dict(name='causal_lm', packing='stream', z_loss=1e-4)
  c.data = dict(name='stream', path=common.corpus('web'), layout='stream', length=LENGTH, batch_size=ROWS)
  c.optim = dict(
    name='adafactor',  # without factoring: Adam with steps as long as the parameters are large (§5)
    rate=0.01,
    schedule='inverse_sqrt',
    hold=10_000,
    factored=False,
    b1=0.9,
    decay=(('.*', 'rate'),),  # lr^2 a step
    clip=1.0,
  )
  c.sharding = dict(mesh=dict(data=-1, model=16 if size == 'palm-540b' else 4), rules='fsdp_tensor_sequence')
  c.execution = dict(dtype='bfloat16', remat='full')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
