"""Replies of a fine-tuned model: classes, word labels, dependency trees, answers and choices.

`classify`, `tag`, `parse`, `answer` and `choose` build examples from texts. `class_of`, `tags_of`, `answer_of` and
`choice_of` turn the prediction of an example, or of the windows of a question, into a reply; predicting.py uses them
for files.
"""

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.config import build
from plm_jax.core import scripts
from plm_jax.core.errors import ConfigError, counted
from plm_jax.core.types import Vocab
from plm_jax.data.rows.examples import word_gap
from plm_jax.data.rows.written import Form
from plm_jax.inference import overlapping_windows, tasks
from plm_jax.inference.overlapping_windows import Window
from plm_jax.inference.tasks import OpenTask, Predicted
from plm_jax.scores import Group, Row, attachment, grouped, seqeval, squad, squad2

_NAMES = re.compile(r'\{([^{}]*)\}')
# default fields, by the number of texts
_TEXTS = {1: ('text',), 2: ('sentence1', 'sentence2')}
_OPTIONS = ('context', 'endings')


def classify(task: OpenTask, texts: Sequence[str | Sequence[Any]], *, rows: int) -> list[dict[str, Any]]:
  """Predict the class or the value of each example, as `Model.classify`.

  A class without a name is named by its index.

  Raises:
    ConfigError: the number of texts differs from the fields of the run.
  """
  examples = [_row(task, (text,) if isinstance(text, str) else tuple(text)) for text in texts]
  predicted = tasks.predictions(task, examples, wanted='classify', batch_rows=rows)
  return [class_of(each.prediction, _named(task, each)) for each in predicted]


def _row(task: OpenTask, texts: tuple[Any, ...]) -> dict[str, Any]:
  fields = tuple(task.block.get('fields', ())) or _form_fields(task.block) or _TEXTS.get(len(texts), ())
  if len(fields) != len(texts):
    wanted = f'{counted(len(fields), "text")} ({", ".join(fields)})' if fields else 'one or two texts'
    raise ConfigError(
      f'classify: {task.opened.folder} reads {wanted} per example, got {len(texts)}: '
      'give a string for one text, a tuple for several'
    )
  return dict(zip(fields, texts, strict=True))


def _form_fields(block: Mapping[str, Any]) -> tuple[str, ...]:
  """List the fields of text-to-text examples; () for other data."""
  if 'form' not in block:
    return ()
  form: Form = build.make('data.rows.forms', block['form'])
  return form.fields + form.whole


def _named(task: OpenTask, predicted: Predicted) -> Row:
  return {**predicted.record, 'names': task.names} if task.names else predicted.record


def class_of(prediction: Row, record: Row) -> dict[str, Any]:
  """Return class and probabilities, or value, of an example, as `classify`."""
  if 'value' in prediction:
    return {'value': float(prediction['value'])}
  shares = prediction.get('probability', np.empty(0)).tolist()
  names = list(record.get('names') or ())
  names = names and [*names, *range(len(names), len(shares))]
  if 'threshold' in prediction:
    names = names or list(range(len(shares)))
    present = (prediction['probability'] > prediction['threshold']).tolist()
    return {'labels': list(itertools.compress(names, present)), 'probabilities': dict(zip(names, shares, strict=False))}
  label = int(prediction['label'])
  # an example may have fewer options than others
  names = names or list(record.get('options') or range(max(len(shares), label + 1)))
  return {'label': names[label], 'probabilities': dict(zip(names, shares, strict=False))}


def tag(
  task: OpenTask, texts: Sequence[str | Sequence[str]], *, rows: int, as_written: bool = False
) -> list[list[dict[str, Any]]]:
  """Predict the label of every word, as `Model.tag`.

  'tag' is None for a word without tokens. A text longer than the sequences of the run is read in windows
  (overlapping_windows.py).
  """
  split = [_words(text, task.whole) for text in texts]
  vocab: Vocab = task.parts.vocab
  names = [[word for word, _, _ in words] for words in split]
  if as_written and not any(key.startswith('characters') for key in task.parts.reads):  # a word is read by itself
    tokens = [_tokens_of(text, words, vocab) for text, words in zip(texts, split, strict=True)]
    indices = map(str, itertools.count())
    names = [list(itertools.islice(indices, len(words))) for words in tokens]
    vocab = _of_indices(vocab, list(itertools.chain.from_iterable(tokens)))
  pieces, owners = windows(names, task.block, vocab)
  field = next(iter(task.block['fields']), 'tokens')
  examples = [{field: words} for words in pieces]
  predicted = tasks.predictions(task, examples, wanted='tag', batch_rows=rows, vocab=vocab) if pieces else []
  results: list[list[dict[str, Any]]] = [[] for _ in texts]
  for (index, window), each in zip(owners, predicted, strict=True):
    tags, shares = tags_of(each.prediction, _named(task, each))
    for word_index in range(window.first, window.last):
      word, start, end = split[index][word_index]
      position = word_index - window.start
      results[index].append(
        {'word': word, 'tag': tags[position], 'probability': shares[position], 'start': start, 'end': end}
      )
  return results


def _of_indices(vocab: Vocab, tokens: Sequence[list[int]]) -> Vocab:
  """Return a vocabulary that reads '3' as the tokens of word 3."""
  spelt = copy.copy(vocab)
  object.__setattr__(spelt, 'encode_batch', lambda texts: [tokens[int(text)] for text in texts])  # it is frozen
  return spelt


def _tokens_of(
  text: str | Sequence[str], words: Sequence[tuple[str, int | None, int | None]], vocab: Vocab
) -> list[list[int]]:
  """Give tokens to the first overlapping word, else the one before."""
  tokens: list[list[int]] = [[] for _ in words]
  place = 0
  for token, (start, end) in zip(*vocab.encode_offsets(str(text)), strict=True):
    while place + 1 < len(words) and words[place][2] <= start:  # type: ignore[operator]  # words of a string
      place += 1
    owner = place - (bool(words) and end <= words[place][1])  # type: ignore[operator]
    if words and owner >= 0:
      tokens[owner].append(token)
  return tokens


def windows(
  texts: Sequence[Sequence[str]], block: Mapping[str, Any], vocab: Vocab
) -> tuple[list[Sequence[str]], list[tuple[int, Window]]]:
  """Cut lists of words into windows, each with text index and place."""
  pieces, owners, room = [], [], tasks.room(block, vocab)
  for index, (words, sizes) in enumerate(zip(texts, _sizes(vocab, texts), strict=True)):
    for window in overlapping_windows.cut(sizes, room=room):
      if window.stop > window.start:
        pieces.append(words[window.start : window.stop])
        owners.append((index, window))
  return pieces, owners


def parse(task: OpenTask, texts: Sequence[str | Sequence[str]], *, rows: int) -> list[list[dict[str, Any]]]:
  """Predict heads and relations, as `Model.parse`; ConfigError for a text too long."""
  split, room = [_words(text, task.whole) for text in texts], tasks.room(task.block, task.parts.vocab)
  for index, sizes in enumerate(_sizes(task.parts.vocab, [[word for word, _, _ in words] for words in split])):
    if sum(sizes) > room:
      raise ConfigError(
        f'parse: text {index} has {sum(sizes)} tokens, but a sequence of this run has room for {room}: '
        'give one sentence at a time'
      )
  indices = [index for index, words in enumerate(split) if words]
  field = next(iter(task.block['fields']), 'tokens')
  examples = [{field: [word for word, _, _ in split[index]]} for index in indices]
  predicted = tasks.predictions(task, examples, wanted='parse', batch_rows=rows) if indices else []
  results: list[list[dict[str, Any]]] = [[] for _ in texts]
  for index, each in zip(indices, predicted, strict=True):
    record = _named(task, each)
    heads, (relations, shares) = attachment.arcs_of(each.prediction, record)[0], tags_of(each.prediction, record)
    for (word, start, end), head, relation, share in zip(split[index], heads, relations, shares, strict=True):
      results[index].append(
        {'word': word, 'head': head, 'relation': relation, 'probability': share, 'start': start, 'end': end}
      )
  return results


def _sizes(vocab: Vocab, split: Sequence[Sequence[str]]) -> Iterator[list[int]]:
  gap = word_gap(vocab)
  for words in split:
    yield [len(ids) for ids in vocab.encode_batch([f'{gap}{word}' for word in words])]


def _words(text: str | Sequence[str], whole: Sequence[str] = ()) -> list[tuple[str, int | None, int | None]]:
  """Split a text into words with their character offsets [start, end)."""
  if isinstance(text, str):
    return list(scripts.pieces(text, whole=whole))
  return [(word, None, None) for word in text]


def tags_of(prediction: Row, record: Row) -> tuple[list[str | None], list[float | None]]:
  """Return tag and probability of each word; None without a tag."""
  labels = np.asarray(prediction['labels'])
  shares: list[float | None] = [None] * len(record['labels'])
  probabilities = np.asarray(prediction['probability'])[labels >= 0].tolist()
  for position, share in zip(record['places'], probabilities, strict=False):
    shares[position] = share
  return seqeval.tags_of(labels, record), shares


def answer(task: OpenTask, pairs: Sequence[tuple[str, str]], *, best: int, rows: int) -> list[dict[str, Any]]:
  """Extract the part of a context that answers each question, as `Model.answer`.

  A long context is read in windows, as in training (data/rows/question_windows.py). Probabilities are a softmax over
  all answers found, so they do not depend on `best`. Those are the adapter's `n_best` legal pairs of every window, each
  text span with its largest score. BERT's run_squad.py instead keeps `n_best` of all windows together.
  """
  fields = tuple(task.block.get('fields', ())) or ('question', 'context')
  side = fields.index('context') if 'context' in fields else 1
  examples = [{fields[1 - side]: question, fields[side]: text} for question, text in pairs]
  predicted = tasks.predictions(task, examples, wanted='answer', batch_rows=rows)
  groups = grouped([each.prediction for each in predicted], [each.record for each in predicted])
  return [answer_of(group, best=best, knows_none='squad2' in task.parts.task.scores) for group in groups]


def answer_of(group: Group, *, best: int, knows_none: bool) -> dict[str, Any]:
  """Combine windows into a reply; `knows_none`: questions may have no answer."""
  # 1. the largest score of each span of characters, over all windows
  best_score: dict[tuple[int, int], float] = {}
  for prediction, record in zip(group.predictions, group.records, strict=True):
    for first, last, score in zip(*(prediction[name].tolist() for name in ('start', 'end', 'score')), strict=True):
      if score > squad.NEVER:
        span = squad.characters_of(record, first, last)
        best_score[span] = max(score, best_score.get(span, squad.NEVER))
  # 2. probabilities: a softmax over all of them, and over no answer if the run predicts it
  text = group.records[0]['context']
  ordered = sorted(best_score.items(), key=lambda item: -item[1])
  scores = [score for _, score in ordered]
  nothing = [min(float(each['no_answer']) for each in group.predictions)] if knows_none else []
  impossible = [float(each['impossible']) for each in group.predictions if 'impossible' in each]
  if knows_none and impossible:  # the run has a separate logit for unanswerable questions
    unanswered = _softmax([min(impossible), 0.0])[0]
    shares = [*((1 - unanswered) * share for share in _softmax(scores)), unanswered]
  else:
    shares = _softmax([*scores, *nothing])  # over all answers, so `best` does not change them
  # 3. the reply
  listed = [
    {'text': text[start:end], 'start': start, 'end': end, 'probability': share}
    for ((start, end), _), share in zip(ordered[:best], shares, strict=False)
  ]
  if (knows_none and squad2.question_of(group).unanswered) or not listed:
    no_answer = {'text': '', 'start': None, 'end': None, 'probability': shares[-1] if nothing else 0.0}
    return {**no_answer, 'best': listed}
  return {**listed[0], 'best': listed}


def _softmax(scores: list[float]) -> list[float]:
  if not scores:
    return []
  powers = np.exp(np.array(scores) - max(scores))
  return (powers / powers.sum()).tolist()


def choose(
  task: OpenTask, items: Sequence[tuple[str | Sequence[str], Sequence[str]]], *, rows: int
) -> list[dict[str, Any]]:
  """Choose one of several options, as `Model.choose`."""
  examples = [_item(task, (stem,) if isinstance(stem, str) else tuple(stem), options) for stem, options in items]
  predicted = tasks.predictions(task, examples, wanted='choose', batch_rows=rows)
  return [choice_of(each.prediction, each.record) for each in predicted]


def choice_of(prediction: Row, record: Row) -> dict[str, Any]:
  """Return the chosen option of an example, as `choose` does."""
  options, index = record['options'], int(prediction['label'])
  shares = prediction['probability'].tolist()[: len(options)]
  return {'option': options[index], 'number': index, 'probabilities': shares}


def _item(task: OpenTask, stem: tuple[str, ...], options: Sequence[str]) -> dict[str, Any]:
  """Assign texts and options to fields; raise ConfigError for other numbers."""
  # fields ('sent1', '{sent2} {ending0|ending1}')   ->   sent1 and sent2 before the options, ending0 and ending1
  fields = tuple(task.block.get('fields', ())) or _OPTIONS
  names = list(dict.fromkeys(name for field in fields for name in _NAMES.findall(field) or [field]))
  position = next((index for index, name in enumerate(names) if '|' in name), len(names) - 1)
  named = names.pop(position)
  alternatives = named.split('|')
  if len(stem) != len(names) or (len(alternatives) > 1 and len(options) != len(alternatives)) or len(options) < 2:
    wanted = f'{len(alternatives)} options' if len(alternatives) > 1 else 'two options or more'
    raise ConfigError(
      f'choose: {task.opened.folder} reads {", ".join(names)} and {wanted}, got '
      f'{counted(len(stem), "text")} and {counted(len(options), "option")}'
    )
  chosen = dict(zip(alternatives, options, strict=True)) if len(alternatives) > 1 else {named: list(options)}
  return {**dict(zip(names, stem, strict=True)), **chosen}
