"""BART base and the noises that it compares: Lewis et al. 2019, §2.2 and §4.1, Table 1.

python -m plm_jax.vocab train --source=tfds:wiki40b/en --name=byte_bpe --size=50265 --specials=roberta \
    --out=runs/vocab/roberta
python -m plm_jax.train --config=experiments/bart/base.py --workdir=runs/bart/base
python -m plm_jax.train --config=experiments/bart/base.py:rotation --workdir=runs/bart/rotation

Hardware: not published. Estimate for 16 TPU v5e chips at 40 % of peak: 1.5 days.
Expect, SQuAD F1 / MNLI / perplexity of ELI5, XSum, ConvAI2, CNN-DM, fine-tuned: `final` (text infilling and sentence
shuffling) 90.8 / 83.8 / 24.17 6.62 11.12 5.41; `infilling` 90.8 / 84.0 / 24.26 6.61 11.05 5.83; `masking` 90.4 / 84.1 /
25.05 7.08 11.73 6.10; `deletion` 90.4 / 84.1 / 24.61 6.90 11.46 5.87; `rotation` 77.2 / 75.3 / 53.69 17.14 19.87 10.59;
`shuffling` 85.4 / 81.5 / 41.87 10.93 16.67 7.89; `masked_seq2seq` 87.0 / 82.1 / 23.40 6.80 11.43 6.19.

Arguments: `quick` and one of these noises. The table's language models on one stack are other configs.
Differs from the paper: English Wikipedia without books; its batch, rate and shares of masked and deleted tokens are not
published: here 256 rows, RoBERTa's rate for that size, and 15 %.
"""

from experiments import common

NONE = dict(where=dict(name='iid', rate=0.0), edit=dict(name='drop'))
INFILLING = dict(where=dict(name='poisson_spans', rate=0.3, mean=3.0), edit=dict(name='collapse_to_mask', max_insert=1))
SHUFFLING = (dict(name='permute_sentences'),)
NOISES = {
  'final': dict(INFILLING, rearrange=SHUFFLING),
  'infilling': INFILLING,
  'masking': dict(where=dict(name='exact_units', rate=0.15), edit=dict(name='collapse_to_mask', max_insert=1)),
  'deletion': dict(where=dict(name='exact_units', rate=0.15), edit=dict(name='drop')),
  'rotation': dict(NONE, finish=(dict(name='rotate'),)),
  'shuffling': dict(NONE, rearrange=SHUFFLING),
  'masked_seq2seq': dict(where=dict(name='one_span', rate=0.5), edit=dict(name='to_mask'), target='chosen'),
}


def get_config(arg=''):
  """Takes `quick` and one of `NOISES`."""
  c = common.run(arg, choices=tuple(NOISES), steps=1_000_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bart', variant='bart-base')
  settings = dict(target='text', start='eos', append_eos=False)  # rows are <s> text </s>
  c.objective = dict(name='denoise_seq2seq', **settings | NOISES[common.chosen(arg, tuple(NOISES))])
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=256)
  c.optim = dict(
    name='adamw',
    rate=1e-4,
    schedule='linear',
    warmup=10_000,
    decay=common.NO_DECAY_ON_NORMS,
    b1=0.9,
    b2=0.98,
    eps=1e-6,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
