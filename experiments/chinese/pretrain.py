"""Whole-word masks for Chinese: Cui et al. 2019, Pre-Training with Whole Word Masking for Chinese BERT.

pip install -r requirements/chinese.txt
plm-jax vocab train --source=runs/data/chinese --name=wordpiece --size=6000 --alphabet=5600 --out=runs/vocab/chinese
plm-jax train --config=experiments/chinese/pretrain.py:small --workdir=runs/chinese/small

Tokens are characters; masks cover the words that a segmenter finds, here jieba (--config.data.segmenter=module:function
takes your own). `characters` masks single characters, as Google's Chinese BERT. For `small`, runs/data/chinese holds
train.txt, the training parts of chinese_classics, chinese_wiki_simplified and chinese_wiki_traditional (3.9 M
characters), and validation.txt, the validation parts of the first two, with empty lines between documents.

Hardware: the paper trained on a TPU v3-8 of Google Cloud; `small` takes about half an hour of a CPU core.
Expect, base size, fine-tuned on ChnSentiCorp (accuracy, best and mean of ten runs; github.com/ymcui): BERT dev 94.7
(94.3), test 95.0 (94.7); BERT-wwm 95.1 (94.5), 95.4 (95.0); RoBERTa-wwm-ext 95.0 (94.6), 95.6 (94.8). `small`, our
own figures (experiments/results/chinese): perplexity 406 of whole words masked in held-out text; ChnSentiCorp, mean of
three seeds, 81.2, of `characters` 81.1, from scratch 79.7, a linear model of counts of characters 87.3.
Arguments: `small`, `characters`, `quick`.
Differs from the paper: jieba instead of LTP, of which only whole words of Chinese are taken as in the released code; no
next sentences, as its RoBERTa-wwm-ext; from fresh parameters; AdamW; one length. `small` has 2.6 M parameters, masks
40 % of the characters and reads two thirds of its text.
"""

from experiments import common

SMALL = dict(
  num_layers=3, num_heads=3, hidden_dim=192, mlp_dim=768, max_length=512, dropout=0.0, attention_dropout=0.0,
  init_std=0.06, position_init='sinusoids',
)  # fmt: skip


def get_config(arg=''):
  """Takes `small`, `characters` and `quick`."""
  small, characters = 'small' in common.words(arg), 'characters' in common.words(arg)
  c = common.run(arg, choices=('small', 'characters'), steps=1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('chinese'))
  c.model = dict(name='bert', variant='bert-base')
  where = dict(name='fixed_count' if characters else 'whole_word', rate=0.15)
  c.objective = dict(name='mlm', where=where, edit=dict(name='bert_80_10_10'))
  c.data = dict(name='stream', path='runs/data/chinese', length=512, batch_size=384)
  c.data.segmenter = None if characters else 'jieba'
  c.optim = dict(name='adamw', rate=1e-4, schedule='linear', warmup=10_000, decay=common.NO_DECAY_ON_NORMS, clip=1.0)
  c.sharding = dict(mesh=dict(data=-1))
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  if small:
    c.steps, c.model = 1_200, dict(name='bert', variant='tiny', overrides=SMALL)
    c.objective.where.rate = 0.4
    c.data.length, c.data.batch_size = 64, 32
    c.optim = dict(c.optim, rate=1e-3, warmup=0.05)
    c.sharding, c.execution, c.accumulate = {}, dict(layers='loop'), 4
    c.log_every, c.eval_every, c.save_every = 50, 400, 200
  return common.quick(c, arg)
