"""The objectives that BART compares, at base size: Lewis et al. 2019, §4.1 and §4.2, Table 1.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --size=50265 --specials=roberta \
    --out=runs/vocab/roberta
plm-jax train --config=experiments/bart/comparison.py:rotation --workdir=runs/bart/rotation

Hardware: not published. Slices, at 40 % of peak: v5e:4x4, 26 hours; `masked_seq2seq` v5e:4x4, 18 hours; of one stack
`masked_lm` v5e:4x4, 17 hours, as long as `multitask`; `permuted_lm` v5e:4x4, 20 hours; `lm` v5e:4x4, 23 hours.
Expect, fine-tuned: SQuAD F1, MNLI, and perplexities of ELI5, XSum, ConvAI2, CNN-DM:
  masked_lm         90.0  83.5  24.77   7.87  12.59   7.06     one stack
  masked_seq2seq    87.0  82.1  23.40   6.80  11.43   6.19
  lm                76.7  80.1  21.40   7.00  11.51   6.56     one stack
  permuted_lm       89.1  83.7  24.03   7.69  12.23   6.96     one stack
  multitask         89.2  82.4  23.73   7.50  12.39   6.74     one stack
  masking           90.4  84.1  25.05   7.08  11.73   6.10
  deletion          90.4  84.1  24.61   6.90  11.46   5.87
  infilling         90.8  84.0  24.26   6.61  11.05   5.83
  rotation          77.2  75.3  53.69  17.14  19.87  10.59
  shuffling         85.4  81.5  41.87  10.93  16.67   7.89
  infill_shuffle    90.8  83.8  24.17   6.62  11.12   5.41

Arguments: `quick` and one of these names; `infill_shuffle` is the default.
Differs from the paper: English Wikipedia without books and a vocabulary trained on it; pieces of documents packed side
by side with attention kept inside them; its batch, rate and shares of masked and deleted tokens are not published: here
256 rows, RoBERTa's rate for that size, and 15 %. One stack is 12 layers of the same width: RoBERTa base for the
encoders, which hide tokens as BERT does (80/10/10), and GPT for `lm`. Sentences end at lines and all punctuation, not
at full stops alone. As in fairseq, all parameters decay.
"""

from experiments import common

HIDE = dict(where=dict(name='fixed_count', rate=0.15), edit=dict(name='bert_80_10_10'))
# one token in six is predicted, from a copy of it in the same row: 85 positions more than the row has
ONE_IN_SIX = dict(where=dict(name='fixed_count', rate=1 / 6))
# name: model, its variant, overrides, objective
ONE_STACK = {
  'masked_lm': ('bert', 'roberta-base', {}, dict(name='mlm', **HIDE)),
  'lm': ('gpt', 'gpt', {}, dict(name='causal_lm')),
  'permuted_lm': ('bert', 'roberta-base', dict(max_length=597), dict(name='permuted_lm', **ONE_IN_SIX)),
  'multitask': ('bert', 'roberta-base', {}, dict(name='unilm', prefix='half', **HIDE)),
}
NONE = dict(where=dict(name='iid', rate=0.0), edit=dict(name='drop'))
INFILLING = dict(where=dict(name='poisson_spans', rate=0.3, mean=3.0), edit=dict(name='collapse_to_mask', max_insert=1))
SHUFFLING = (dict(name='permute_sentences'),)
TWO_STACKS = {
  'infill_shuffle': dict(INFILLING, rearrange=SHUFFLING),
  'infilling': INFILLING,
  'masking': dict(where=dict(name='exact_units', rate=0.15), edit=dict(name='collapse_to_mask', max_insert=1)),
  'deletion': dict(where=dict(name='exact_units', rate=0.15), edit=dict(name='drop')),
  'rotation': dict(NONE, finish=(dict(name='rotate'),)),
  'shuffling': dict(NONE, rearrange=SHUFFLING),
  'masked_seq2seq': dict(where=dict(name='one_span', rate=0.5), edit=dict(name='to_mask'), target='chosen'),
}
NAMES = (*TWO_STACKS, *ONE_STACK)


def get_config(arg=''):
  """Takes `quick` and one of `NAMES`."""
  name = common.chosen(arg, NAMES)
  c = common.run(arg, choices=NAMES, steps=1_000_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  if name in ONE_STACK:
    model, variant, overrides, c.objective = ONE_STACK[name]
    c.model = dict(name=model, variant=variant, overrides=overrides)
  else:
    c.model = dict(name='bart', variant='bart-base')
    settings = dict(target='text', start='eos', append_eos=False)  # rows are <s> text </s>
    c.objective = dict(name='denoise_seq2seq', **settings | TWO_STACKS[name])
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=256)
  if 'rearrange' in c.objective:
    c.data.sentences = 'both'
  c.optim = dict(name='adamw', rate=1e-4, schedule='linear', warmup=10_000, decay=0.01, b1=0.9, b2=0.98, eps=1e-6)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
