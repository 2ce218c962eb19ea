"""BART large: Lewis et al. 2019, §5.1; text infilling of 30 % of the words and permutation of all sentences.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --size=50265 --specials=roberta \
    --out=runs/vocab/roberta
plm-jax train --config=experiments/bart/large.py --workdir=runs/bart/large --stop_at=450000
plm-jax train --config=experiments/bart/large.py:last --workdir=runs/bart/large-last

Hardware: not published. Slice, cycles unknown: v5e:16x16, 3.2 days at 40 % of peak. A lost chip costs at most 16
minutes.
Expect, fine-tuned: MNLI 89.9, QNLI 94.9, QQP 92.5, RTE 87.0, SST-2 96.6, MRPC 90.4, CoLA 62.8, STS-B 91.2; SQuAD 1.1
EM / F1 88.8 / 94.6; ROUGE 1 / 2 / L of CNN-DM 44.16 / 21.28 / 40.90, of XSum 45.14 / 22.27 / 37.25.

Arguments: `quick`; `last` is the last 10 % of the steps, without dropout, from where the first 90 % stopped.
Differs from the paper: 8,192 rows a batch for 8,000, which slices divide; C4's WebText-like part for its 160 GB of
text; a vocabulary trained on English Wikipedia; pieces of documents packed side by side with attention kept inside
them; its rate is not published, here RoBERTa's for that batch; sentences end
at lines and all punctuation, not at full stops alone; `last` begins with fresh Adam moments. As in fairseq,
all parameters decay.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick` and `last`."""
  last = 'last' in common.words(arg)
  c = common.run(arg, choices=('last',), steps=50_000 if last else 500_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bart', variant='bart-large')
  c.objective = dict(
    name='denoise_seq2seq',
    rearrange=(dict(name='permute_sentences'),),
    where=dict(name='poisson_spans', rate=0.3, mean=3.0),
    edit=dict(name='collapse_to_mask', max_insert=1),
    target='text',
    start='eos',
    append_eos=False,  # rows are <s> text </s>
  )
  c.data = dict(name='stream', sentences='both', path=common.corpus('web'), length=512, batch_size=8_192)
  c.optim = dict(name='adamw', rate=4e-4, schedule='linear', warmup=30_000, decay=0.01, b1=0.9, b2=0.98, eps=1e-6)
  if last:  # the rate that the first part ends with, from there to 0
    c.init_from = (dict(source='runs/bart/large', from_='', to=''),)
    c.model.overrides = dict(dropout=0.0, attention_dropout=0.0)
    c.optim.rate, c.optim.warmup = 4.26e-5, 0
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
