"""Names and parts of speech by fine-tuning: CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), WNUT-17 (Derczynski et al.
2017) and the English Web Treebank of Universal Dependencies (Silveira et al. 2014), for trunks of nine papers.

plm-jax train --config=experiments/tagging/fine_tune.py:conll2003,bert --workdir=runs/tagging/conll2003
plm-jax train --config=experiments/tagging/fine_tune.py:wnut17,roberta \
    --config.data.path=data/wnut_17 --workdir=runs/tagging/wnut17

Hardware: one accelerator, minutes.
Expect: CoNLL-2003 (dev F1) 96.4 with BERT-base (Devlin et al. 2018, Table 7); what other papers report of these sets
with trunks of other sizes is not repeated here. A trunk pre-trained on our text alone stays below. A model that calls
every word O has F1 0.

Arguments: a set (conll2003, wnut17, ewt), a trunk (bert, roberta, albert, electra, deberta, xlnet, gpt, bart, t5),
`crf`, `quick`. WNUT-17 is a folder with train, validation and test; --config.data.label=tags for its .conll files.
Differs from the paper: rates, epochs and decay are those that each paper gives for its other classifications; T5 labels
words by a layer and not by writing them; a decoder sees what stands before a word alone; rows are single sentences.
"""

from experiments import common


def get_config(arg=''):
  """Takes a set, a trunk, `crf` and `quick`."""
  name, trunk = common.chosen(arg, tuple(common.TAGGING)), common.chosen(arg, tuple(common.TRUNKS))
  c = common.fine_tuned(arg, trunk, choices=(*common.TAGGING, 'crf'))
  c.adapter = dict(name='tag', tags=common.TAGGING[name][2], dropout=0.1, crf='crf' in common.words(arg))
  c.data = common.tagging(name, layout=common.TRUNKS[trunk].layout, batch_size=32)
  common.score_tagging(c, name)
  return common.quick(c, arg)
