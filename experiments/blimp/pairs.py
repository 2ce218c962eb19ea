"""BLiMP without training: Warstadt et al. 2020, "BLiMP: The Benchmark of Linguistic Minimal Pairs", §3 and Table 3.

plm-jax evaluate --config=experiments/blimp/pairs.py --weights=FOLDER --config.data.path=../shared/data/blimp
plm-jax evaluate --config=experiments/blimp/pairs.py --weights=FOLDER --config.objective.masking=word_l2r
plm-jax evaluate --config=experiments/blimp/pairs.py --weights=FOLDER --workdir=runs/blimp --predictions=pairs.jsonl
plm-jax train --config=experiments/blimp/pairs.py:quick --workdir=runs/blimp/quick

FOLDER is one of Hugging Face's decoders, masked language models, XLNet, ELECTRA, T5 or BART, an import or a run, also
of ELMo, GLM and GPT-BERT. Data are any file with a good and a bad sentence:
--config.data.good=FIELD --config.data.bad=FIELD --config.data.groups="('f',)".
`evaluations.jsonl` of --workdir has the accuracy by paradigm (test/UID/...), phenomenon (test/linguistics_term/...) and
field, and in total (test/accuracy). A run of pre-training measures it as well:
--config.eval.blimp="dict(task=dict(name='minimal_pairs'), data=dict(name='minimal_pairs', path='...'))"
Hardware: a laptop; 67,000 pairs of a BERT of 5 M parameters take 12 to 25 minutes of two cores.
Expect (accuracy in per cent, all paradigms): GPT-2 large 81.5 (the paper's Table 3, 80.1 in its first version), human
agreement 88.6; masked, by Salazar et al. 2020, Table 6: BERT-base 84.2, RoBERTa-base 85.4, RoBERTa-large 86.5.
Arguments: `word_l2r`, the masks of the second command for models with masks; `quick`, which trains a tiny model on
pairs of docstrings.
Differs from the paper: the seven pairs of BLiMP with two equal sentences count as right, as in lm-evaluation-harness.
They are counted in `ties`. Any other tie is wrong.
"""

from experiments import common


def get_config(arg=''):
  """Takes `word_l2r` and `quick`."""
  c = common.run(arg, choices=('word_l2r',), steps=100_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt2'))
  c.model = dict(name='gpt', variant='gpt2')
  c.objective = dict(name='minimal_pairs')
  if 'word_l2r' in common.words(arg):
    c.objective.masking = 'word_l2r'
    if 'quick' in common.words(arg):
      c.model = dict(name='bert', variant='tiny')  # GPT-2 reads sentences without masks
  c.data = dict(name='minimal_pairs', path='runs/data/blimp', split='test', batch_size=256)
  c.eval = dict(test=dict(data=dict(split='test')))
  c.best = ('test/accuracy', 'max')
  c.optim = common.bert_adam(1e-4, warmup=0.01)
  return common.quick(c, arg)
