"""RoBERTa's four input formats: Liu et al. 2019, §4.2; Table 2.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --specials=roberta --size=50265 \\
    --out=runs/vocab/roberta
plm-jax train --config=experiments/roberta/formats.py:full --workdir=runs/roberta/full

Hardware: as experiments/bert/base.py; all formats run 1M steps of about the same number of tokens. Slices, at 40 % of
peak: v5e:4x4, 17 hours; `sentence_pair` v5e:4x4, 16 hours.
Expect, fine-tuned (Table 2: SQuAD 1.1/2.0 F1, MNLI-m, SST-2, RACE):
  segment_pair   90.4/78.7  84.0  92.9  64.2     with next-sentence prediction
  sentence_pair  88.7/76.2  82.9  92.1  63.0     with next-sentence prediction
  full           90.4/79.1  84.7  92.5  64.8
  doc            90.6/79.7  84.7  92.7  65.6

Arguments: `quick`, one of `FORMATS`.
Differs from the paper: English Wikipedia without BooksCorpus, and a vocabulary trained on it; documents' short ends are
packed side by side in rows of `doc`, with attention kept inside them, where the paper enlarges the batch; sentence
pairs are in rows of 128 in a batch four times as large. The log says how many tokens a batch has. Adam's b2 is the
paper's .98 (§3.1, for large batches); whether it held for this table, of batches of 256, is not said.
"""

from experiments import common

FORMATS = ('full', 'doc', 'segment_pair', 'sentence_pair')


def get_config(arg=''):
  """Takes `quick` and one of `FORMATS`."""
  form = common.chosen(arg, FORMATS)
  c = common.run(arg, choices=FORMATS, steps=1_000_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bert', variant='roberta-base')
  c.objective = dict(
    name='mlm',
    where=dict(name='fixed_count', rate=0.15, count='roberta', candidates='all'),  # fairseq: floor(.15 n + U), <s> too
    edit=dict(name='bert_80_10_10', random_ids='ordinary'),
    masking='dynamic',
  )
  rows = dict(path=common.corpus('wiki'), length=512, batch_size=256)
  if form in ('full', 'doc'):
    layout = 'full' if form == 'full' else 'documents'
    c.data = dict(name='stream', layout=layout, whole_sentences=True, sentences='both', **rows)
  else:
    c.objective = dict(c.objective, name='sentence_pair', question='nsp', layout='roberta')
    c.data = dict(name='pairs', sentences='both', unit=form.removesuffix('_pair'), short_probability=0.0, **rows)
  if form == 'sentence_pair':
    c.data.length, c.data.batch_size = 128, 1024
  c.optim = dict(
    name='adamw',
    rate=1e-4,
    schedule='linear',
    warmup=10_000,
    decay=0.01,  # of all parameters, as in fairseq
    b1=0.9,
    b2=0.98,
    eps=1e-6,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
