"""What configs share: the keys of a run, vocabularies and corpora by name, parameter groups, the smoke test.

A config takes words separated by commas, as in `experiments/bert/glue.py:mnli,large,quick`; `quick` is known to all.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

QUICK_VOCAB = 'runs/quickstart/vocab'
CORPORA = {
  'pydocs': 'pydocs',
  'wiki': 'hf://datasets/google/wiki40b/en',  # for BERT's English Wikipedia; BooksCorpus is not distributed any more
  'books': 'tfds:pg19',  # for GPT's BooksCorpus: books out of copyright, longer and older
  'web': 'hf://datasets/allenai/c4/en',  # for GPT-2's WebText
}
# Labelled rows of the embedded corpus, for adapters: keywords of the data block, classes.
SINGLES = dict(path='pydocs/package', fields=('text',), label='label', kind='class'), 8
PAIRS = dict(path='pydocs/summary_pair', fields=('summary', 'body'), label='label', kind='class'), 2
# Rows of it as text, by adapter: path and form.
TEXTS = {
  'sequence': ('pydocs/summarise', dict(name='template', inputs='{source}', target='{target}')),
  'translate': ('pydocs/summarise', dict(name='template', inputs='{source}', target='{target}')),
  'translate_bart': ('pydocs/summarise', dict(name='template', inputs='{source}', target='{target}')),
  'prompt': ('pydocs/summary_choice', dict(name='template', inputs='{context}', options=('{endings}',))),
  'classify': ('pydocs/summary_pair', dict(name='template', inputs='{summary} {body}', options=('a', 'b'))),
  'cloze': ('pydocs/summary_pair', dict(name='template', inputs='{summary} [MASK] {body}', options=('a', 'b'))),
}
# Rows of Multi30k for an encoder of words, and a decoder with a vocabulary of its own
TRANSLATION = dict(
  name='text_to_text', form=dict(name='template', inputs='{en}', target='{de}'), second='targets', layout='bare',
  target_layout='text',
)  # fmt: skip
# name: (fields, classes, evaluation splits)
GLUE = {
  'cola': (('sentence',), 2, ('validation',)),
  'sst2': (('sentence',), 2, ('validation',)),
  'mrpc': (('sentence1', 'sentence2'), 2, ('validation',)),
  'stsb': (('sentence1', 'sentence2'), 1, ('validation',)),
  'qqp': (('question1', 'question2'), 2, ('validation',)),
  'mnli': (('premise', 'hypothesis'), 3, ('validation_matched', 'validation_mismatched')),
  'qnli': (('question', 'sentence'), 2, ('validation',)),
  'rte': (('sentence1', 'sentence2'), 2, ('validation',)),
  'wnli': (('sentence1', 'sentence2'), 2, ('validation',)),
}
OPTIONAL = ('validation_mismatched',)  # splits that copies of a set may lack
# Options to choose from. name: path, field of the label, evaluation split, fields in the form of BERT
OPTIONS = {
  'swag': ('data/swag', 'label', 'val', ('sent1', '{sent2} {ending0|ending1|ending2|ending3}')),
  'hellaswag': ('tfds:hellaswag', 'label', 'validation', ('context', 'endings')),
  'race': ('tfds:race/high', 'answers', 'dev', ('article', '{questions} {options}')),
  'copa': (
    'tfds:super_glue/copa', 'label', 'validation', ('premise', 'What was the {question} of this? {choice1|choice2}')
  ),
  'record': ('tfds:super_glue/record', 'answers', 'validation', ('passage', '{query} {entities}')),
}  # fmt: skip
OPTION_LENGTHS = {'swag': 128, 'hellaswag': 128, 'race': 512, 'copa': 64, 'record': 384}  # tokens of an option's row
OPTION_SCORES = {'record': ('record',)}  # what is reported beside accuracy
# Tasks of SuperGLUE that have classes; the others are among `OPTIONS`. name: (fields, classes, scores beside accuracy)
SUPER_GLUE = {
  'cb': (('premise', 'hypothesis'), 3, ('macro_f1',)),
  'boolq': (('question', 'passage'), 2, ()),
  'rte': (('premise', 'hypothesis'), 2, ()),
  'wic': (('word', 'sentence1', 'sentence2'), 2, ()),
  'multirc': (('paragraph', 'question', 'answer'), 2, ('multirc',)),
  'wsc': (('text',), 2, ()),
}
# Sizes of ELMo for a text of ten million words, on a CPU
ELMO_CUT = dict(hidden_dim=256, mlp_dim=256, filters=(16, 32, 64), highway_layers=1)
# Labelled words. name: (path, field of labels, label names in the order of their numbers)
TAGGING = {
  'conll2003': (
    'tfds:conll2003',
    'ner',
    ('O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC'),
  ),
  'wnut17': (  # no build in TFDS: a folder of train, validation and test
    'data/wnut_17',
    'ner_tags',
    ('O', 'B-corporation', 'I-corporation', 'B-creative-work', 'I-creative-work', 'B-group', 'I-group', 'B-location',
     'I-location', 'B-person', 'I-person', 'B-product', 'I-product'),
  ),
  'ewt': (
    'tfds:universal_dependencies/en_ewt',
    'upos',
    ('NOUN', 'PUNCT', 'ADP', 'NUM', 'SYM', 'SCONJ', 'ADJ', 'PART', 'DET', 'CCONJ', 'PROPN', 'PRON', 'X', '_', 'ADV',
     'INTJ', 'VERB', 'AUX'),
  ),
}  # fmt: skip
# What GLUE reports of a task beside accuracy: files of plm_jax/scores/. A regression has its correlations by itself.
GLUE_SCORES = {'cola': ('matthews',), 'mrpc': ('f1',), 'qqp': ('f1',)}
GLUE_BEST = {'cola': 'matthews', 'stsb': 'spearman'}


def run(
  arg: str, *, choices: Sequence[str] = (), steps: int | None = None, epochs: float | None = None, seed: int = 0
) -> ConfigDict:
  """The keys of every config, locked, so that a misspelt key is an error where it is written.

  Args:
    arg: the argument of the config; a word that is neither `quick` nor one of `choices` is refused.
    choices: the words that this config takes.
    steps: number of updates.
    epochs: passes over the data, in place of steps.
    seed: of parameters, data order, noise and dropout.
  """
  known = ['quick', *choices]
  check_words(arg, known, complaint='this config takes no argument')
  c = ConfigDict(dict(seed=seed, steps=steps, epochs=epochs, log_every=100, eval_every=10_000, save_every=10_000))
  blocks = ('vocab', 'second_vocab', 'model', 'objective', 'adapter', 'data', 'optim', 'best', 'early_stop')
  c.update(dict.fromkeys(blocks))
  c.update(dict(sharding={}, execution={}, eval={}, init_from=(), accumulate=1))
  return c.lock()


def words(arg: str) -> list[str]:
  """The words of a config's argument."""
  return [word for word in arg.split(',') if word]


def check_words(arg: str, known: Sequence[str], *, complaint: str) -> None:
  """Raises ValueError, which begins with `complaint`, where an argument has another word than these."""
  for word in words(arg):
    if word not in known:
      raise ValueError(f'{complaint} {word!r}. It takes: {", ".join(known)}.')


def chosen(arg: str, choices: Sequence[str]) -> str:
  """The one of `choices` that stands in `arg`; the first where none does. Two of them are refused, as by `either`."""
  return either(arg, choices) or choices[0]


def either(arg: str, choices: Sequence[str]) -> str | None:
  """The one of `choices` that stands in `arg`; None where none does.

  Raises:
    ValueError: two of them stand there, and only one could be followed.
  """
  found = [word for word in dict.fromkeys(words(arg)) if word in choices]
  if len(found) > 1:
    raise ValueError(
      f'{" and ".join(map(repr, found))} exclude each other in the argument of this config. It takes one of: '
      f'{", ".join(choices)}.'
    )
  return found[0] if found else None


def vocab(name: str) -> str:
  """Where a vocabulary lies; `plm-jax vocab train --out=<there> ...` makes it."""
  return f'runs/vocab/{name}'


def corpus(name: str) -> str:
  """Where a corpus comes from; --config.data.path=FOLDER takes another, such as the original."""
  return CORPORA[name]


NORMS_AND_BIASES = r'.*(norm/scale|/bias)'


def no_decay_on_norms(rate: float) -> tuple[tuple[str, float], ...]:
  """Weight decay for all but biases and the scales of norms."""
  return ((NORMS_AND_BIASES, 0.0), ('.*', rate))


NO_DECAY_ON_NORMS = no_decay_on_norms(0.01)


def bert_adam(rate: float, *, warmup: float, **changes: Any) -> dict[str, Any]:
  """The optimiser of BERT's released code, with which it pre-trains and is fine-tuned; DeBERTa, ELECTRA and XLNet too.

  Args:
    rate: at the end of the warmup.
    warmup: steps, or a fraction of all.
    **changes: other keywords of the optimiser, or other values for these.
  """
  plain = dict(name='bert_adam', rate=rate, schedule='linear_bert', warmup=warmup, decay=NO_DECAY_ON_NORMS)
  return plain | dict(clip=1.0, b1=0.9, b2=0.999, eps=1e-6) | changes


def llama_adam(rate: float, **changes: Any) -> dict[str, Any]:
  """The optimiser of LLaMA (Touvron et al. 2023, §2.3), also of decoders that follow it or whose own is not published.

  Args:
    rate: at the end of the warmup.
    **changes: other keywords of the optimiser, or other values for these.
  """
  plain = dict(name='adamw', rate=rate, schedule='cosine', warmup=2000, floor=0.1, decay=no_decay_on_norms(0.1))
  return plain | dict(clip=1.0, b1=0.9, b2=0.95) | changes


def read_c4(c: ConfigDict, name: str, *, length: int, batch: int) -> None:
  """A decoder that reads C4 as one stream, in bfloat16 and with its parameters cut over all devices.

  Args:
    c: gets its vocabulary, objective, data, sharding, execution and evaluation.
    name: of the vocabulary.
    length: tokens of a row.
    batch: tokens of a batch.
  """
  c.vocab = dict(name='byte_bpe', path=vocab(name))
  c.objective = dict(name='causal_lm', packing='stream')
  c.data = dict(name='stream', path=corpus('web'), layout='stream', length=length, batch_size=batch // length)
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='full')
  c.eval = validation()
  c.best = ('validation/loss', 'min')


_SMALL_CVT = dict(word_dim=50, char_dim=16, filters=(0, 24, 24, 24), hidden_dim=128, mlp_dims=(128, 64))
# Cross-view training by size: file of word vectors, changes of the trunk, width of heads, deviation of their kernels,
# steps, tokens of a row
CVT = dict(
  full=('runs/data/glove.6B.300d.txt', {}, 512, 0.03, 200_000, 100),
  small=('../shared/data/glove/glove.6B.50d.5k.txt.gz', _SMALL_CVT, 128, 0.1, 1000, 24),
)
CVT_OPTIM = dict(full=dict(warmup=5000, ema=0.998), small=dict(warmup=100, ema=0.99))
AWD_LSTM = {'full': {}, 'small': dict(hidden_dim=128, mlp_dim=256)}  # sizes of ULMFiT's trunk
# Rates of its dropout under a classifier (Howard and Ruder 2018, §4.1)
AWD_DROPOUT = dict(
  input_dropout=0.4, weight_dropout=0.5, embedding_dropout=0.05, hidden_dropout=0.3, output_dropout=0.0
)
# Multipliers of the rate while its language model is fine-tuned, in the released code
AWD_RELEASED = (('trunk/lstm_2/.*', 1.0), ('trunk/lstm_1/.*', 1 / 3), ('trunk/lstm_0/.*', 1 / 6), ('.*', 0.5))
AWD_GROUPS = ('trunk/(lstm_2|output_bias)/.*', 'trunk/lstm_1/.*', 'trunk/lstm_0/.*', 'trunk/.*')


def awd_groups(factor: float, *, period: float = 0.0, first: int = 0) -> tuple[tuple[str, Any], ...]:
  """Multipliers of ULMFiT's groups from the top down: discriminative rates and gradual unfreezing (§3.2 and §3.3).

  Args:
    factor: what the rate of a group is divided by for the group below it.
    period: share of the run after which one more group joins; 0 for all at once.
    first: number of the topmost group of the trunk, 1 below a head.
  """
  numbered = enumerate(AWD_GROUPS, start=first)
  groups = ((pattern, dict(unfreeze=period * number, scale=factor**-number)) for number, pattern in numbered)
  return (*groups, ('.*', 1.0))


def chain_thaw(period: float) -> tuple[tuple[str, Any], ...]:
  """Multipliers of chain-thaw (Felbo et al. 2017, §3.3): the head, each group from the lowest up alone, then all.

  Args:
    period: share of the run in which one of them trains.
  """

  def turn(number: int) -> dict[str, Any]:
    return dict(during=((period * number, period * (number + 1)), (period * (len(AWD_GROUPS) + 1), 1.0)))

  groups = ((pattern, turn(len(AWD_GROUPS) - place)) for place, pattern in enumerate(AWD_GROUPS))
  return (*groups, ('.*', turn(0)))


def gpt_adam() -> dict[str, Any]:
  """The optimiser with which GPT is fine-tuned (Radford et al. 2018, §4.1, and the released code)."""
  plain = dict(name='adamw', rate=6.25e-5, schedule='gpt', warmup=0.002, decay=NO_DECAY_ON_NORMS)
  return plain | dict(clip=1.0, b1=0.9, b2=0.999, eps=1e-8)


def validation(*splits: str) -> dict[str, Any]:
  """Evaluations on splits of the training data's source, named after them; those that copies may lack are optional."""
  optional = {split: dict(optional=(split,)) for split in OPTIONAL}
  return {split: dict(data=dict(split=split), **optional.get(split, {})) for split in splits or ('validation',)}


def glue(name: str, **settings: Any) -> dict[str, Any]:
  """The data block of a GLUE task."""
  kind = 'regression' if name == 'stsb' else 'class'
  return dict(name='labelled', path=f'tfds:glue/{name}', fields=GLUE[name][0], kind=kind, **settings)


def super_glue(name: str, **settings: Any) -> dict[str, Any]:
  """The data block of a task of `SUPER_GLUE`."""
  if name == 'wsc':
    marked = dict(form=dict(name='marked'), target_length=8)
    return dict(name='text_to_text', path='tfds:super_glue/wsc.fixed', **marked, **settings)
  return dict(name='labelled', path=f'tfds:super_glue/{name}', fields=SUPER_GLUE[name][0], **settings)


def score_super_glue(c: ConfigDict, name: str) -> None:
  """The evaluation of a task of `SUPER_GLUE`, and the best step by its accuracy."""
  c.eval = dict(validation=dict(data=dict(split='validation'), scores=SUPER_GLUE[name][2]))
  c.best = ('validation/accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 100, 100


def tagging(name: str, **settings: Any) -> dict[str, Any]:
  """The data block of a set of `TAGGING`: single sentences, cut at 256 tokens."""
  path, label, _ = TAGGING[name]
  words = dict(kind='words', fields=('tokens',), label=label, length=256, buckets=(64, 128))
  return dict(name='labelled', path=path, **words, **settings)


def score_tagging(c: ConfigDict, name: str) -> None:
  """Evaluations on validation and test with the strict F1 of entities, and the best step by F1 as CoNLL counts it.

  Parts of speech have accuracy alone.
  """
  scores = None if name == 'ewt' else ('seqeval',)
  c.eval = {split: dict(one, scores=scores) for split, one in validation('validation', 'test').items()}
  c.best = ('validation/accuracy' if name == 'ewt' else 'validation/f1', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 200, 200


def score_glue(c: ConfigDict, name: str) -> None:
  """Evaluations on the validation splits of a GLUE task with its scores, and the best step by those of the first."""
  splits = GLUE[name][2]
  c.eval = {split: dict(one, scores=GLUE_SCORES.get(name)) for split, one in validation(*splits).items()}
  c.best = (f'{splits[0]}/{GLUE_BEST.get(name, "accuracy")}', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 500, 500


def options(name: str, **settings: Any) -> dict[str, Any]:
  """The data block of a set of `OPTIONS`."""
  path, label, _, fields = OPTIONS[name]
  return dict(name='labelled', kind='options', path=path, fields=fields, label=label) | settings


def score_options(c: ConfigDict, name: str) -> None:
  """The evaluation of a set of `OPTIONS`, and the best step by it."""
  split = OPTIONS[name][2]
  c.eval = {split: dict(data=dict(split=split), scores=OPTION_SCORES.get(name))}
  c.best = (f'{split}/accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 500, 500


def features_adam() -> dict[str, Any]:
  """Adam of the network of a task over a frozen trunk; its `vectors` do not train."""
  own = 'trunk/(scalar_mix|output_mix|task_lstm)/.*'
  scale = ((own, 1.0), ('trunk/.*', None), ('.*', 1.0))
  return dict(name='adam', rate=3e-3, schedule='linear', warmup=0.05, clip=5.0, scale=scale)


def over_elmo(c: ConfigDict, side: str, **settings: Any) -> None:
  """A network of one layer of LSTM over a frozen ELMo, the run of `cut`, and over GloVe as its `vectors`.

  Args:
    c: gets its vocabulary, model, adapter, optimiser and what it begins with.
    side: where the mix of layers is put.
    **settings: further ones of adapter `scalar_mix`, `inner` among them.
  """
  glove = '../shared/data/glove/glove.6B.50d.5k.txt.gz'
  c.vocab = dict(name='words', path=vocab('elmo_8k'))
  c.model = dict(name='elmo', variant='elmo-small', overrides=ELMO_CUT)
  network = dict(vectors=50, dropout=0.2, side=side, penalty=0.001, lstm_layers=1, lstm_dim=100)
  c.adapter = dict(name='scalar_mix') | network | settings
  c.optim = features_adam()
  c.init_from = (
    dict(source='runs/elmo/cut', from_='trunk', to='trunk'),
    dict(source=glove, from_='', to='trunk/vectors'),
  )


def score_spans(c: ConfigDict) -> None:
  """The evaluation of answers in texts, and the best step by their F1."""
  c.eval, c.best = validation(), ('validation/f1', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 1000, 1000


def squad(version: str, **settings: Any) -> dict[str, Any]:
  """The data block of SQuAD 'v1.1' or 'v2.0'; windows as in the released code of BERT."""
  windows = dict(length=384, stride=128, question_length=64)
  fields = dict(fields=('question', 'context'), label='answers')
  return dict(name='labelled', kind='spans', path=f'tfds:squad/{version}') | fields | windows | settings


def own_data(c: ConfigDict, *, kind: str, best: tuple[str, str], **settings: Any) -> None:
  """A person's own rows, by BERT's recipe; what is None or empty is found in the data before a run begins."""
  c.vocab = dict(name='wordpiece', path=vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-base')
  found = dict(path='data/mine', split=None, fields=(), label=None, layout=None)
  c.data = dict(name='labelled', kind=kind, batch_size=32) | found | settings
  c.optim = bert_adam(3e-5, warmup=0.1)
  c.init_from = (dict(source='runs/bert/base', from_='trunk', to='trunk'),)
  c.eval = dict(validation=dict(data=dict(split=None)))
  c.best = (f'validation/{best[0]}', best[1])
  c.log_every, c.eval_every, c.save_every = 20, 200, 200


# Trunks of nine papers, and how each is fine-tuned --------------------------------------------------------------------

SENTINELS = tuple(f'<extra_id_{k}>' for k in range(100))


class Trunk(NamedTuple):
  """A trunk that several configs fine-tune.

  Attributes:
    kind: of its vocabulary.
    vocab: name of its vocabulary.
    extra: tokens that are new in it.
    model: file of `models/`.
    variant: its size.
    layout: of rows.
    source: run that it comes from.
  """

  kind: str
  vocab: str
  extra: tuple[str, ...]
  model: str
  variant: str
  layout: str
  source: str


TRUNKS = {
  'bert': Trunk('wordpiece', 'bert-cased', (), 'bert', 'bert-base', 'bert', 'bert/base-cased'),
  'roberta': Trunk('byte_bpe', 'roberta', (), 'bert', 'roberta-base', 'roberta', 'roberta/base'),
  'albert': Trunk('wordpiece', 'albert', (), 'albert', 'albert-base-v1', 'bert', 'albert/base'),
  'electra': Trunk('wordpiece', 'bert-uncased', (), 'bert', 'electra-base', 'bert', 'electra/base'),
  'deberta': Trunk('byte_bpe', 'deberta', (), 'deberta', 'deberta-base', 'bert', 'deberta/base'),
  'xlnet': Trunk('wordpiece', 'xlnet', (), 'xlnet', 'xlnet-base', 'xlnet', 'xlnet/base'),
  'gpt': Trunk('byte_bpe', 'gpt', ('_start_', '_delimiter_', '_classify_'), 'gpt', 'gpt', 'gpt', 'gpt/gpt'),
  'bart': Trunk('byte_bpe', 'roberta', (), 'bart', 'bart-base', 'roberta', 'bart/base'),
  't5': Trunk('byte_bpe', 't5', SENTINELS, 't5', 't5-base', 'plain', 't5/pretrain'),
}
FAIRSEQ = dict(name='adamw', schedule='linear', warmup=0.06, b1=0.9, b2=0.98)
DECAYS_ALL = ('roberta', 'bart')  # as in fairseq
# ELECTRA's rates: .8 to the power of the layers above, the head included
LAYERWISE = (
  ('trunk/layers/.*', dict(layerwise=0.8, scale=0.64)),
  ('trunk/.*', dict(layerwise=0.8, scale=0.64, below=1)),
  ('.*', 1.0),
)
# trunk: epochs, weight decay of all but biases and norms (`DECAYS_ALL`: of all), the rest of the optimiser
RECIPES = {
  'bert': (3, 0.01, bert_adam(5e-5, warmup=0.1)),
  'roberta': (10, 0.1, dict(FAIRSEQ, rate=2e-5, eps=1e-6)),
  'albert': (3, 0.01, bert_adam(3e-5, warmup=0.1)),
  'electra': (3, 0.01, bert_adam(1e-4, warmup=0.1, schedule='gpt', scale=LAYERWISE)),
  'deberta': (3, 0.01, bert_adam(3e-5, warmup=0.1)),
  'xlnet': (3, 0.01, bert_adam(2e-5, warmup=0.1, schedule='linear')),
  'gpt': (3, 0.01, gpt_adam()),
  'bart': (10, 0.01, dict(FAIRSEQ, rate=1e-5, eps=1e-8)),
  't5': (10, 0.0, dict(name='adafactor', rate=1e-3, schedule='constant')),
}


def fine_tuned(arg: str, trunk: str, *, choices: Sequence[str]) -> ConfigDict:
  """A trunk of `TRUNKS` with the recipe of its paper: all but data, adapter and evaluations.

  Args:
    arg: as of `run`.
    trunk: its name.
    choices: the words that the config takes besides the names of trunks.
  """
  own, (epochs, decay, optim) = TRUNKS[trunk], RECIPES[trunk]
  c = run(arg, choices=(*choices, *TRUNKS), epochs=epochs)
  c.vocab = dict(name=own.kind, path=vocab(own.vocab), extra=own.extra)
  c.model = dict(name=own.model, variant=own.variant)
  c.optim = dict(optim, decay=decay if trunk in DECAYS_ALL else no_decay_on_norms(decay))
  resize = 'new_rows' if own.extra else None
  c.init_from = (dict(source=f'runs/{own.source}', from_='trunk', to='trunk', resize=resize),)
  c.execution = dict(dtype='bfloat16')
  return c


# The smoke test -------------------------------------------------------------------------------------------------------


def quick(c: ConfigDict, arg: str) -> ConfigDict:
  """The config; with the word `quick` it has few steps and the vocabulary and labelled rows of the embedded corpus.

  The rest of what `quick` changes is stated by plug-in files, in `QUICK`, and applied when the config is loaded. Needs
  `plm-jax vocab train --source=pydocs --name=byte_bpe --size=6000 --out=runs/quickstart/vocab` once.
  """
  if 'quick' not in words(arg):
    return c
  with c.unlocked():
    c.vocab = dict(name='byte_bpe', path=QUICK_VOCAB, extra=c.vocab.get('extra', ()))
    c.second_vocab = c.second_vocab and dict(name='byte_bpe', path=QUICK_VOCAB)
    head = c.adapter and (c.adapter.get('inner') or c.adapter)  # a wrapper holds the adapter with the head
    if head and 'classes' in head and not head.get('several') and c.data['name'] == 'labelled':
      rows, classes = PAIRS if len(c.data.fields) > 1 else SINGLES
      c.data, head.classes = dict(c.data, **rows), head.classes and classes  # None: those of the rows
    elif c.objective and c.data['name'] == 'labelled':  # texts that are compared
      c.data = dict(c.data, **PAIRS[0])
    c.eval = {name: dict(data=dict(split='validation[:64]')) for name in c.eval}
    if c.best and c.best[0].endswith(tuple(GLUE_BEST.values())):
      c.best = (f'{c.best[0].partition("/")[0]}/accuracy', 'max')
    if c.data['name'] == 'text_to_text':
      user = c.adapter or c.objective
      path, form = TEXTS[user.name]
      if c.data['form']['name'] == 'patterns' and user.name == 'sequence':  # it writes into a blank
        form = dict(form, inputs='{source} [MASK]')
      c.data = dict(c.data, path=path, form=form, split='train')
      if 'decoding' in user:
        user.decoding = ConfigDict(dict(method='beam', beams=2, max_new=8))
      c.best = c.best and (f'{c.best[0].partition("/")[0]}/loss', 'min')
    c.optim = dict(c.optim, rate=1e-3, warmup=0 if c.optim.schedule == 'stlr' else 2)  # it has its own
    c.sharding, c.execution, c.init_from, c.accumulate = {}, {}, (), 1
    c.steps, c.epochs, c.log_every, c.eval_every, c.save_every = 20, None, 5, 10, 10
    c.save_minutes = None
  return c
