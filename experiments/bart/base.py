"""BART base, with the noise of the final models: Lewis et al. 2019, §2.2 and §4.1, the last row of Table 1.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --size=50265 --specials=roberta \
    --out=runs/vocab/roberta
plm-jax train --config=experiments/bart/base.py --workdir=runs/bart/base

Hardware: not published. Slice: v5e:4x4, 29 hours by cycles. A lost chip costs at most 16 minutes.
Expect, SQuAD F1 / MNLI / perplexity of ELI5, XSum, ConvAI2, CNN-DM, fine-tuned: 90.8 / 83.8 / 24.17 6.62 11.12 5.41.

Arguments: `quick`. The other rows of the table are arguments of comparison.py.
Differs from the paper: English Wikipedia without books and a vocabulary trained on it; pieces of documents packed side
by side with attention kept inside them; its batch and rate are not published: here 256 rows and RoBERTa's rate for that
size; sentences end at lines and all punctuation, not at full stops alone. As in fairseq, norms and biases decay with
the rest, and nothing is clipped.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=1_000_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bart', variant='bart-base')
  c.objective = dict(
    name='denoise_seq2seq',
    rearrange=(dict(name='permute_sentences'),),
    where=dict(name='poisson_spans', rate=0.3, mean=3.0),
    edit=dict(name='collapse_to_mask', max_insert=1),
    target='text',
    start='eos',
    append_eos=False,  # rows are <s> text </s>
  )
  c.data = dict(name='stream', sentences='both', path=common.corpus('wiki'), length=512, batch_size=256)
  c.optim = dict(name='adamw', rate=1e-4, schedule='linear', warmup=10_000, decay=0.01, b1=0.9, b2=0.98, eps=1e-6)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16', layers='auto')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
