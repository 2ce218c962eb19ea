"""XLNet base on Wikipedia: Yang et al. 2019, §3.4, the ablation of Table 6.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=32000 --out=runs/vocab/xlnet
plm-jax train --config=experiments/xlnet/base.py --workdir=runs/xlnet/base

Hardware: the paper names none for its ablation. Slice, cycles unknown: v5e:4x4, 25 hours at 40 % of peak. A lost chip
costs at most 16 minutes.
Expect, fine-tuned, medians of 5 runs (RACE; SQuAD 2.0 F1 / EM; MNLI m/mm; SST-2):
  K=6                66.66  80.98 / 78.18  85.63 / 85.12  93.35
  `k7`               66.05  81.33 / 78.46  85.84 / 85.43  92.66
  `no_memory`        65.55  80.15 / 77.27  85.32 / 85.05  92.78
  `no_ngrams`        65.95  80.61 / 77.91  85.49 / 85.02  93.12
  `unidirectional`   66.34  80.65 / 77.87  85.31 / 84.99  92.66
  `dae`              65.03  79.56 / 76.80  84.88 / 84.45  92.60   BERT's objective on the same network with its memory

Arguments: `quick`; one of the rows above.
Differs from the paper: Wikipedia without BooksCorpus (--config.data.path=FOLDER takes other text); WordPiece of the
same size for SentencePiece unigrams; A ends anywhere, not where a sentence does. Steps, batch and rate are BERT's.
"""

from experiments import common

ROWS = ('k6', 'k7', 'no_memory', 'no_ngrams', 'unidirectional', 'dae')


def get_config(arg=''):
  """Takes `quick` and one of `ROWS`."""
  row = common.chosen(arg, ROWS)
  c = common.run(arg, choices=ROWS, steps=1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('xlnet'))
  c.model = dict(name='xlnet', variant='xlnet-base')
  c.objective = dict(
    name='permutation_lm', one_in=7 if row == 'k7' else 6, ngrams=row != 'no_ngrams', memory=row != 'no_memory'
  )
  c.data = dict(
    name='bptt',
    path=common.corpus('wiki'),
    length=512,
    batch_size=256,
    second_segment=True,
    reverse_half=row not in ('unidirectional', 'dae'),
  )
  if row == 'dae':
    c.objective = dict(name='mlm', memory=True)
  c.optim = common.bert_adam(1e-4, warmup=10_000, schedule='linear', floor=0.001)  # min_lr_ratio of the released code
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
