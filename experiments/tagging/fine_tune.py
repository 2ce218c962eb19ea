"""Names and parts of speech by fine-tuning: CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), WNUT-17 (Derczynski et al.
2017) and the English Web Treebank of Universal Dependencies (Silveira et al. 2014), for trunks of nine papers.

python -m plm_jax.train --config=experiments/tagging/fine_tune.py:conll2003,bert --workdir=runs/tagging/conll2003
python -m plm_jax.train --config=experiments/tagging/fine_tune.py:wnut17,roberta \
    --config.data.path=data/wnut_17 --workdir=runs/tagging/wnut17

Hardware: one accelerator, minutes.
Expect: CoNLL-2003 (dev F1) 96.4 with BERT-base (Devlin et al. 2018, Table 7); the other papers report none of the
three sets. A trunk pre-trained on our text alone stays below. A model that calls every word O has F1 0.

Arguments: a set (conll2003, wnut17, ewt), a trunk (bert, roberta, albert, electra, deberta, xlnet, gpt, bart, t5),
`crf`, `quick`. WNUT-17 is a folder with train, validation and test; --config.data.label=tags for its .conll files.
Differs from the paper: rates, epochs and decay are those that each paper gives for its other classifications; T5 labels
words by a layer and not by writing them; a decoder sees what stands before a word alone; rows are single sentences.
"""

from experiments import common

SENTINELS = tuple(f'<extra_id_{k}>' for k in range(100))
# trunk: kind and name of its vocabulary, new tokens, model, variant, layout of rows, run that it comes from
TRUNKS = {
  'bert': ('wordpiece', 'bert-cased', (), 'bert', 'bert-base', 'bert', 'bert/base-cased'),
  'roberta': ('byte_bpe', 'roberta', (), 'bert', 'roberta-base', 'roberta', 'roberta/base'),
  'albert': ('wordpiece', 'albert', (), 'albert', 'albert-base-v1', 'bert', 'albert/base'),
  'electra': ('wordpiece', 'bert-uncased', (), 'bert', 'electra-base', 'bert', 'electra/base'),
  'deberta': ('byte_bpe', 'deberta', (), 'deberta', 'deberta-base', 'bert', 'deberta/base'),
  'xlnet': ('wordpiece', 'xlnet', (), 'xlnet', 'xlnet-base', 'xlnet', 'xlnet/base'),
  'gpt': ('byte_bpe', 'gpt', ('_start_', '_delimiter_', '_classify_'), 'gpt', 'gpt', 'gpt', 'gpt/gpt'),
  'bart': ('byte_bpe', 'roberta', (), 'bart', 'bart-base', 'roberta', 'bart/base'),
  't5': ('byte_bpe', 't5', SENTINELS, 't5', 't5-base', 'plain', 't5/pretrain'),
}
FAIRSEQ = dict(name='adamw', schedule='linear', warmup=0.06, b1=0.9, b2=0.98)
# ELECTRA's rates: .8 to the power of the layers above, the head included
LAYERWISE = (
  ('trunk/layers/.*', dict(layerwise=0.8, scale=0.64)),
  ('trunk/.*', dict(layerwise=0.8, scale=0.64, below=1)),
  ('.*', 1.0),
)
# trunk: epochs, weight decay of all but biases and norms (BART: of all), the rest of the optimiser
RECIPES = {
  'bert': (3, 0.01, common.bert_adam(5e-5, warmup=0.1)),
  'roberta': (10, 0.1, dict(FAIRSEQ, rate=2e-5, eps=1e-6)),
  'albert': (3, 0.01, common.bert_adam(3e-5, warmup=0.1)),
  'electra': (3, 0.01, common.bert_adam(1e-4, warmup=0.1, schedule='gpt', scale=LAYERWISE)),
  'deberta': (3, 0.01, common.bert_adam(3e-5, warmup=0.1)),
  'xlnet': (3, 0.01, common.bert_adam(2e-5, warmup=0.1, schedule='linear')),
  'gpt': (3, 0.01, common.gpt_adam()),
  'bart': (10, 0.01, dict(FAIRSEQ, rate=1e-5, eps=1e-8)),
  't5': (10, 0.0, dict(name='adafactor', rate=1e-3, schedule='constant')),
}


def get_config(arg=''):
  """Takes a set, a trunk, `crf` and `quick`."""
  name, trunk = common.chosen(arg, tuple(common.TAGGING)), common.chosen(arg, tuple(TRUNKS))
  kind, vocab, extra, model, variant, layout, source = TRUNKS[trunk]
  epochs, decay, optim = RECIPES[trunk]
  c = common.run(arg, choices=(*common.TAGGING, *TRUNKS, 'crf'), epochs=epochs)
  c.vocab = dict(name=kind, path=common.vocab(vocab), extra=extra)
  c.model = dict(name=model, variant=variant)
  c.adapter = dict(name='tag', tags=common.TAGGING[name][2], dropout=0.1, crf='crf' in common.words(arg))
  c.data = common.tagging(name, layout=layout, batch_size=32)
  c.optim = dict(optim, decay=decay if trunk == 'bart' else common.no_decay_on_norms(decay))
  c.init_from = (dict(source=f'runs/{source}', from_='trunk', to='trunk', resize='new_rows' if extra else None),)
  c.execution = dict(dtype='bfloat16')
  common.score_tagging(c, name)
  return common.quick(c, arg)
