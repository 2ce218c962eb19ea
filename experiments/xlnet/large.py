"""XLNet large: Yang et al. 2019, §3.1 and appendix A.4.1, Table 8.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=32000 --out=runs/vocab/xlnet
plm-jax train --config=experiments/xlnet/large.py --workdir=runs/xlnet/large

Hardware: the paper took 5.5 days on 512 TPU v3 chips. Slice, cycles unknown: v5e:16x16, 3.5 days at 40 % of peak. A
lost chip costs at most 16 minutes.
Expect, fine-tuned (dev, with the paper's 126 GB of text): SQuAD 1.1/2.0 F1 94.5/88.8, MNLI-m 89.8, SST-2 95.6; with
less text 94.0/87.8, 88.4, 94.4 (as RoBERTa's Table 4 quotes them).

Arguments: `quick`.
Differs from the paper: English Wikipedia for 126 GB of five corpora (--config.data.path=FOLDER takes other text);
WordPiece of the same size for SentencePiece unigrams; A ends anywhere, not where a sentence does.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=500_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('xlnet'))
  c.model = dict(name='xlnet', variant='xlnet-large')
  c.objective = dict(name='permutation_lm', one_in=6)
  c.data = dict(
    name='bptt', path=common.corpus('wiki'), length=512, batch_size=8192, second_segment=True, reverse_half=True
  )
  c.optim = common.bert_adam(4e-4, warmup=40_000, schedule='linear', floor=0.001)  # min_lr_ratio of the released code
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='full')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
