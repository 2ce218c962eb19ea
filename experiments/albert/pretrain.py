"""ALBERT: masked n-grams and sentence order: Lan et al. 2019, §3 and §4.1; Tables 2 to 5.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30000 --out=runs/vocab/albert
plm-jax train --config=experiments/albert/pretrain.py:base --workdir=runs/albert/base

Hardware: the paper used 64 to 512 Cloud TPU v3 chips. Slices, cycles unknown: `base` v5e:8x8, 8.2 hours at 40 % of
peak; `xxlarge` v5e:16x16, 2.2 days at 40 % of peak. A lost chip costs at most 16 minutes.
Expect, fine-tuned (Table 2: SQuAD 1.1 F1/EM, SQuAD 2.0 F1/EM, MNLI, SST-2, RACE), after 125,000 steps:
  base     89.3/82.3  80.0/77.1  81.6  90.3  64.0     12M parameters
  large    90.6/83.9  82.3/79.4  83.5  91.7  68.5     18M
  xlarge   92.5/86.1  86.1/83.1  86.4  92.4  74.8     60M
  xxlarge  94.1/88.3  88.1/85.1  88.0  95.2  82.3     235M
Sentence order is told right in 86.5 % of held-out pairs (Table 5), and with `nsp` the next sentence in 90.5 %.

Arguments: `quick`; a size, one of `SIZES`; a task (sop, nsp, mlm), the rows of Table 5. Table 4 (sharing) is
--config.model.overrides.sharing=attention, ffn or none; Table 3 --config.model.overrides.embed_dim=64, 256 or 768.
Differs from the paper: English Wikipedia without BooksCorpus; WordPiece, trained on it, in place of SentencePiece; all
15 % of a row's tokens are predicted, of which the released command keeps 20. Copies of each row (40), warm-up, the
updates without bias correction and the parameters that LAMB neither decays nor rescales are those of the released code.
"""

from experiments import common

SIZES = ('base', 'large', 'xlarge', 'xxlarge')
TASKS = ('sop', 'nsp', 'mlm')


def get_config(arg=''):
  """Takes `quick`, a size and a task."""
  size = common.chosen(arg, SIZES)
  task = common.chosen(arg, TASKS)
  c = common.run(arg, choices=(*SIZES, *TASKS), steps=125_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('albert'))
  c.model = dict(name='albert', variant=f'albert-{size}-v1', overrides={})
  where = dict(name='ngram', rate=0.15, max_words=3)
  masks = dict(where=where, edit=dict(name='bert_80_10_10'), masking='static', copies=40)
  rows = dict(path=common.corpus('wiki'), length=512, batch_size=4096)
  if task == 'mlm':
    c.objective, c.data = dict(name='mlm', **masks), dict(name='stream', **rows)
  else:
    c.objective = dict(name='sentence_pair', question=task, **masks)
    c.data = dict(name='pairs', sentences='both', short_probability=0.1, copies=40, **rows)
  c.optim = dict(
    name='lamb',
    rate=1.76e-3,
    schedule='linear_bert',
    warmup=3_125,
    decay=common.NO_DECAY_ON_NORMS,
    adapt=((common.NORMS_AND_BIASES, 0.0), ('.*', 1.0)),
    bias_correction=False,
    clip=1.0,
    b1=0.9,
    b2=0.999,
    eps=1e-6,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
