"""OPT: Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models", §2 and Table 1; all nine sizes.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=50272 \
    --specials=gpt2 --out=runs/vocab/opt
plm-jax train --config=experiments/opt/pretrain.py:opt-125m --workdir=runs/opt/opt-125m

Hardware: 992 A100 GPUs of 80 GB for opt-175b (§2.5).
Expect: a loss that falls through the run; the scores of the paper are of its own mix of text.

Arguments: a size (opt-125m, opt-350m, opt-1.3b, opt-2.7b, opt-6.7b, opt-13b, opt-30b, opt-66b, opt-175b), `quick`.
Differs from the paper: C4 for its mix of books, web pages, Reddit and the Pile; GPT-2's form of BPE, trained on C4; the
rate of opt-175b was changed by hand during the run and falls here by the rule.
"""

from experiments import common

# size: (peak rate, tokens of a batch)
SIZES = {
  'opt-125m': (6e-4, 2**19),
  'opt-350m': (3e-4, 2**19),
  'opt-1.3b': (2e-4, 2**20),
  'opt-2.7b': (1.6e-4, 2**20),
  'opt-6.7b': (1.2e-4, 2**21),
  'opt-13b': (1e-4, 2**22),
  'opt-30b': (1e-4, 2**22),
  'opt-66b': (0.8e-4, 2**21),
  'opt-175b': (1.2e-4, 2**21),
}
TOKENS, FALLS, WARMUP, LENGTH = 180_000_000_000, 300_000_000_000, 375_000_000, 2048
# of the rows of the model already, repeated for `quick`
STRUCTURE = dict(position_offset=2, activation='relu', embed_dropout=0.0, attention_dropout=0.0)


def get_config(arg=''):
  """Takes a size and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  rate, batch = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=TOKENS // batch)
  common.read_c4(c, 'opt', length=LENGTH, batch=batch)
  narrow = dict(norm_placement='post', embed_dim=512) if size == 'opt-350m' else {}
  c.model = dict(name='gpt', variant=size, overrides=STRUCTURE | narrow)
  warmup = 2000 if size == 'opt-175b' else WARMUP // batch
  c.optim = common.llama_adam(rate, schedule='linear', warmup=warmup, until=FALLS // batch)
  return common.quick(c, arg)
