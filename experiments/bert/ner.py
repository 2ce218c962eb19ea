"""BERT on names in text, CoNLL-2003, by fine-tuning or as features: Devlin et al. 2018, §5.3 and A.3; Table 7.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=28996 \
    --cased --out=runs/vocab/bert-cased
plm-jax train --config=experiments/bert/base.py --config.vocab.path=runs/vocab/bert-cased \
    --workdir=runs/bert/base-cased
plm-jax train --config=experiments/bert/ner.py --workdir=runs/bert/ner

Hardware: one accelerator, minutes.
Expect (dev F1): base 96.4, large 96.6; under two layers of LSTM the last four side by side (`features`) 96.1 and their
weighted sum (`mix`) 95.9; by other --config.adapter.layers, the sum of all 95.5, the second-to-last 95.6, the last
94.9, the embeddings 91.0. A trunk pre-trained on Wikipedia alone stays a little below, as does a sentence by itself.

The paper's grid, of which the best on dev counts: --config.data.batch_size 16, 32; --config.epochs 2, 3, 4;
--config.optim.rate 5e-5, 4e-5, 3e-5, 2e-5.

Arguments: a trunk (base, large), `features`, `mix` (features whose layers are mixed), `crf` (a CRF at the end, which
the paper does without), `quick`.
Differs from the paper: a vocabulary of our own; rows are single sentences, not documents; the rate for features is
ours, and 768 is the width of each direction; F1 is that of the words that fit into a row.
"""

from experiments import common

TRUNKS = ('base', 'large')
JOINS = dict(features='concat', mix='mix')  # of layers that are features


def get_config(arg=''):
  """Takes a trunk, `features` or `mix`, `crf` and `quick`."""
  trunk, join = common.chosen(arg, TRUNKS), common.either(arg, tuple(JOINS))
  c = common.run(arg, choices=(*TRUNKS, *JOINS, 'crf'), epochs=3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-cased'))
  c.model = dict(name='bert', variant=f'bert-{trunk}')
  c.adapter = dict(name='tag', tags=common.TAGGING['conll2003'][2], dropout=0.1, crf='crf' in common.words(arg))
  c.data = common.tagging('conll2003', layout='bert', batch_size=32)
  c.optim = common.bert_adam(5e-5, warmup=0.1)
  if join:
    c.adapter = dict(c.adapter, frozen=True, layers=(-4, -3, -2, -1), join=JOINS[join], lstm_layers=2, lstm_dim=768)
    c.optim = dict(c.optim, rate=1e-3, decay=0.0, scale=(('trunk/.*', None), ('.*', 1.0)))
  c.init_from = (dict(source=f'runs/bert/{trunk}-cased', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_tagging(c, 'conll2003')
  return common.quick(c, arg)
