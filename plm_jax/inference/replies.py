"""What a fine-tuned network says of texts in words: classes, labels of words, trees, answers, choices.

`classify`, `tag`, `parse`, `answer` and `choose` make rows of texts; `class_of`, `tags_of`, `answer_of` and `choice_of`
put what is predicted of a row, or of the windows of a question, into words, and do so for files too (`predicting.py`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.config import build
from plm_jax.core.errors import ConfigError, counted
from plm_jax.data.rows.examples import word_gap
from plm_jax.data.rows.written import Form
from plm_jax.inference import overlapping_windows, tasks
from plm_jax.inference.tasks import Asked, Predicted
from plm_jax.scores import Group, Row, attachment, grouped, seqeval, squad, squad2
from plm_jax.text import scripts

_WORD = re.compile(rf'{scripts.WORD}|[^\w\s]')
_NAMES = re.compile(r'\{([^{}]*)\}')
# the fields of rows where the config of a run leaves them to its data
_TEXTS = {1: ('text',), 2: ('sentence1', 'sentence2')}
_OPTIONS = ('context', 'endings')


def classify(asked: Asked, texts: Sequence[str | Sequence[Any]], *, rows: int) -> list[dict[str, Any]]:
  """The class of each text or pair and the probability of every class, or the value of a regression.

  Args:
    asked: a run that classifies.
    texts: strings, or a tuple for each row of several fields: a string for each field, a list of strings for one that
      holds a list.
    rows: that are computed at a time.

  Returns:
    {'label': name, 'probabilities': {name: float}} for each, where classes without names have their numbers, and rows
    with options of their own the options; or {'value': float}.

  Raises:
    ConfigError: another number of texts than the run reads.
  """
  given = [_row(asked, (text,) if isinstance(text, str) else tuple(text)) for text in texts]
  made = tasks.predictions(asked, given, wanted='classify', batch_rows=rows)
  return [class_of(one.prediction, _named(asked, one)) for one in made]


def _row(asked: Asked, texts: tuple[Any, ...]) -> dict[str, Any]:
  """Texts by the names of the fields that the run reads."""
  fields = tuple(asked.block.get('fields', ())) or _form_fields(asked.block) or _TEXTS.get(len(texts), ())
  if len(fields) != len(texts):
    wanted = f'{counted(len(fields), "text")} ({", ".join(fields)})' if fields else 'one or two texts'
    raise ConfigError(
      f'classify: {asked.opened.folder} reads {wanted} in a row, and a row has '
      f'{len(texts)}: give a string for one text, a tuple for several'
    )
  return dict(zip(fields, texts, strict=True))


def _form_fields(block: Mapping[str, Any]) -> tuple[str, ...]:
  """The fields that the form of a row needs, of data that are written as text; else ()."""
  if 'form' not in block:
    return ()
  form: Form = build.make('data.rows.forms', block['form'])
  return form.fields + form.whole


def _named(asked: Asked, one: Predicted) -> Row:
  """The record of a row with the names of the classes of the task."""
  return {**one.record, 'names': asked.names} if asked.names else one.record


def class_of(prediction: Row, record: Row) -> dict[str, Any]:
  """The class of a row with the probability of each, as `classify` returns them, or its value."""
  if 'value' in prediction:
    return {'value': float(prediction['value'])}
  shares = prediction['probability'].tolist()
  names = list(record.get('names') or ())
  names = names and [*names, *range(len(names), len(shares))]
  names = names or list(record.get('options') or range(len(shares)))  # a row may have fewer options than others
  return {'label': names[int(prediction['label'])], 'probabilities': dict(zip(names, shares, strict=False))}


# Words ---------------------------------------------------------------------------------------------------------------


def tag(asked: Asked, texts: Sequence[str | Sequence[str]], *, rows: int) -> list[list[dict[str, Any]]]:
  """The label of every word.

  A text is cut into words and signs; one that is longer than the rows of the run is read in windows (windows.py).

  Args:
    asked: a run that labels words.
    texts: strings, or lists of words.
    rows: that are computed at a time.

  Returns:
    for each text a list of {'word', 'tag', 'probability', 'start', 'end'}: characters of the text; None for those of a
    list of words, and for the tag of a word without tokens.
  """
  split = [_words(text) for text in texts]
  pieces, owners = [], []
  for number, sizes in enumerate(_sizes(asked, split)):
    for window in overlapping_windows.cut(sizes, room=tasks.room(asked)):
      if window.stop > window.start:
        pieces.append([word for word, _, _ in split[number][window.start : window.stop]])
        owners.append((number, window))
  field = next(iter(asked.block['fields']), 'tokens')
  made = tasks.predictions(asked, [{field: words} for words in pieces], wanted='tag', batch_rows=rows) if pieces else []
  found: list[list[dict[str, Any]]] = [[] for _ in texts]
  for (number, window), one in zip(owners, made, strict=True):
    tags, shares = tags_of(one.prediction, _named(asked, one))
    for place in range(window.first, window.last):
      word, start, end = split[number][place]
      at = place - window.start
      found[number].append({'word': word, 'tag': tags[at], 'probability': shares[at], 'start': start, 'end': end})
  return found


def parse(asked: Asked, texts: Sequence[str | Sequence[str]], *, rows: int) -> list[list[dict[str, Any]]]:
  """The head of every word and the relation to it, of texts or of lists of words.

  Args:
    asked: a run that parses.
    texts: each is cut into words and signs, or a list of words.
    rows: that are computed at a time.

  Returns:
    for each text a list of {'word', 'head', 'relation', 'probability', 'start', 'end'}: the head is the number of a
    word from 1, or 0 for a root, and characters are those of the text; None as for `tag`.

  Raises:
    ConfigError: a text does not fit into a row of the run: its tree would be of a part of it.
  """
  split, room = [_words(text) for text in texts], tasks.room(asked)
  for number, sizes in enumerate(_sizes(asked, split)):
    if sum(sizes) > room:
      raise ConfigError(
        f'parse: text {number} has {sum(sizes)} tokens, and rows of this run room for {room}: give one sentence at a '
        'time'
      )
  some = [number for number, words in enumerate(split) if words]
  field = next(iter(asked.block['fields']), 'tokens')
  given = [{field: [word for word, _, _ in split[number]]} for number in some]
  made = tasks.predictions(asked, given, wanted='parse', batch_rows=rows) if some else []
  found: list[list[dict[str, Any]]] = [[] for _ in texts]
  for number, one in zip(some, made, strict=True):
    record = _named(asked, one)
    heads, (relations, shares) = attachment.arcs_of(one.prediction, record)[0], tags_of(one.prediction, record)
    for (word, start, end), head, relation, share in zip(split[number], heads, relations, shares, strict=True):
      found[number].append(
        {'word': word, 'head': head, 'relation': relation, 'probability': share, 'start': start, 'end': end}
      )
  return found


def _sizes(asked: Asked, split: Sequence[Sequence[tuple[str, int | None, int | None]]]) -> Iterator[list[int]]:
  """The tokens of each word of each text, as rows of words have them."""
  vocab = asked.opened.vocab
  gap = word_gap(vocab)
  for words in split:
    yield [len(ids) for ids in vocab.encode_batch([f'{gap}{word}' for word, _, _ in words])]


def _words(text: str | Sequence[str]) -> list[tuple[str, int | None, int | None]]:
  """The words of a text with their characters [start, end)."""
  if isinstance(text, str):
    return [(found.group(), found.start(), found.end()) for found in _WORD.finditer(text)]
  return [(word, None, None) for word in text]


def tags_of(prediction: Row, record: Row) -> tuple[list[str | None], list[float | None]]:
  """The tag and its probability of each word of a row; None where it has none."""
  labels = np.asarray(prediction['labels'])
  shares: list[float | None] = [None] * len(record['labels'])
  given = np.asarray(prediction['probability'])[labels >= 0].tolist()
  for place, share in zip(record['places'], given, strict=False):
    shares[place] = share
  return seqeval.tags_of(labels, record), shares


# Answers -------------------------------------------------------------------------------------------------------------


def answer(asked: Asked, pairs: Sequence[tuple[str, str]], *, best: int, rows: int) -> list[dict[str, Any]]:
  """The part of a text that answers a question.

  A long text is read in windows as in training (data/rows/question_windows.py).

  Args:
    asked: a run that points at answers.
    pairs: questions and their texts.
    best: answers to name beside the first, it included.
    rows: windows that are computed at a time.

  Returns:
    {'text', 'start', 'end', 'probability', 'best'}: characters of the text, '' and None where the run says that there
    is no answer. 'best' are the likeliest answers, with the same keys. Probabilities are a softmax over the scores of
    all answers that are found, however many are named: the parts of the text that the adapter's `n_best` legal pairs of
    every window give, each with its largest score; and, where the run knows of texts without an answer, of none (like
    BERT's run_squad.py, which keeps `n_best` of all windows together).
  """
  fields = tuple(asked.block.get('fields', ())) or ('question', 'context')
  side = fields.index('context') if 'context' in fields else 1
  given = [{fields[1 - side]: question, fields[side]: text} for question, text in pairs]
  made = tasks.predictions(asked, given, wanted='answer', batch_rows=rows)
  groups = grouped([one.prediction for one in made], [one.record for one in made])
  return [answer_of(group, best=best, knows_none='squad2' in asked.made.task.scores) for group in groups]


def answer_of(group: Group, *, best: int, knows_none: bool) -> dict[str, Any]:
  """The answer to a question from its windows, as `answer` returns it.

  Args:
    group: the windows.
    best: answers to name.
    knows_none: whether texts without an answer are told apart.
  """
  found: dict[tuple[int, int], float] = {}
  for prediction, record in zip(group.predictions, group.records, strict=True):
    for first, last, score in zip(*(prediction[name].tolist() for name in ('start', 'end', 'score')), strict=True):
      if score > squad.NEVER:
        place = squad.characters_of(record, first, last)
        found[place] = max(score, found.get(place, squad.NEVER))
  text = group.records[0]['context']
  ordered = sorted(found.items(), key=lambda item: -item[1])
  scores = [score for _, score in ordered]
  nothing = [min(float(one['no_answer']) for one in group.predictions)] if knows_none else []
  told = [float(one['impossible']) for one in group.predictions if 'impossible' in one]
  if knows_none and told:  # by a logit of its own
    unanswered = _softmax([min(told), 0.0])[0]
    shares = [*((1 - unanswered) * share for share in _softmax(scores)), unanswered]
  else:
    shares = _softmax([*scores, *nothing])  # of all, so that how many are named changes none
  every = [
    {'text': text[start:end], 'start': start, 'end': end, 'probability': share}
    for ((start, end), _), share in zip(ordered[:best], shares, strict=False)
  ]
  if (knows_none and squad2.question_of(group).unanswered) or not every:
    none = {'text': '', 'start': None, 'end': None, 'probability': shares[-1] if nothing else 0.0}
    return {**none, 'best': every}
  return {**every[0], 'best': every}


def _softmax(scores: list[float]) -> list[float]:
  if not scores:
    return []
  powers = np.exp(np.array(scores) - max(scores))
  return (powers / powers.sum()).tolist()


# Choices -------------------------------------------------------------------------------------------------------------


def choose(
  asked: Asked, items: Sequence[tuple[str | Sequence[str], Sequence[str]]], *, rows: int
) -> list[dict[str, Any]]:
  """The right one of several options.

  Args:
    asked: a run that chooses.
    items: what the options belong to, a text or a tuple of the texts that the run reads, and the options.
    rows: that are computed at a time.

  Returns:
    {'option', 'number', 'probabilities'}: the text that is chosen, its place, and the probability of each.
  """
  given = [_item(asked, (stem,) if isinstance(stem, str) else tuple(stem), options) for stem, options in items]
  made = tasks.predictions(asked, given, wanted='choose', batch_rows=rows)
  return [choice_of(one.prediction, one.record) for one in made]


def choice_of(prediction: Row, record: Row) -> dict[str, Any]:
  """The option of a row that is chosen, as `choose` returns it."""
  options, number = record['options'], int(prediction['label'])
  shares = prediction['probability'].tolist()[: len(options)]
  return {'option': options[number], 'number': number, 'probabilities': shares}


def _item(asked: Asked, stem: tuple[str, ...], options: Sequence[str]) -> dict[str, Any]:
  """A row by the names of the fields that the run reads.

  Raises:
    ConfigError: another number of texts or options than those have.
  """
  # fields ('sent1', '{sent2} {ending0|ending1}')   ->   sent1 and sent2 before the options, ending0 and ending1
  fields = tuple(asked.block.get('fields', ())) or _OPTIONS
  names = list(dict.fromkeys(name for field in fields for name in _NAMES.findall(field) or [field]))
  place = next((number for number, name in enumerate(names) if '|' in name), len(names) - 1)
  named = names.pop(place)
  several = named.split('|')
  if len(stem) != len(names) or (len(several) > 1 and len(options) != len(several)) or len(options) < 2:
    wanted = f'{len(several)} options' if len(several) > 1 else 'two options or more'
    raise ConfigError(
      f'choose: {asked.opened.folder} reads {", ".join(names)} and {wanted}, and a row has '
      f'{counted(len(stem), "text")} and {counted(len(options), "option")}'
    )
  chosen = dict(zip(several, options, strict=True)) if len(several) > 1 else {named: list(options)}
  return {**dict(zip(names, stem, strict=True)), **chosen}
