"""A model in three lines of Python: `load` a folder, ask it something.

    import plm_jax
    model = plm_jax.load('runs/bert/base')
    model.fill('Paris is the [MASK] of France .')

The folder is that of a run, an import, or one in Hugging Face's form with its tokenizer. What it can be asked depends
on what it was trained for; anything else is refused with what it can do. One text gives one result, a list of texts a
list (of `encode`, an array): in their order, and each as it would be alone. Texts of any length are read together with
those of like length (batches.py), and a bar appears where that takes longer than a second.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from plm_jax.checkpoint import Step
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Execution
from plm_jax.generate import settings
from plm_jax.inference import batches, continued, fill_mask, likelihood, opened, replies, tasks, translating, vectors
from plm_jax.inference.fill_mask import Filled
from plm_jax.inference.likelihood import LogProbability, PseudoLogLikelihood
from plm_jax.inference.vectors import Pool, TokenVectors
from plm_jax.io import files

Texts = str | Sequence[str]
Pair = tuple[str, ...]
Fields = tuple[str | Sequence[str], ...]
Dtype = Literal['float32', 'bfloat16', 'float16']
Result = TypeVar('Result')


def load(
  folder: str | os.PathLike[str],
  *,
  step: Step = None,
  part: str | None = None,
  batch_size: int = batches.ROWS,
  dtype: Dtype = 'float32',
) -> 'Model':
  """Opens a folder to ask it something; parameters are read when they are first needed.

  Args:
    folder: a run, an import (`plm-jax convert import`), or one in Hugging Face's form with its tokenizer.
    step: of a run: a number, 'newest' or 'best'; None is the best where one was kept, else the newest.
    part: one task of a run that learned several, which is opened as a run of that task alone.
    batch_size: rows that are computed at a time.
    dtype: of activations and matrix products, whatever a run was trained in.

  Raises:
    ConfigError: there is no such folder, no model or no vocabulary in it, or no such step or task.
  """
  _count('load: batch_size', batch_size)
  if not isinstance(folder, str | os.PathLike):
    raise ConfigError(f'load: takes the name of a folder, and this is {type(folder).__name__}')
  with errors.stage('load'):
    errors.one_of('dtype', dtype, Dtype)
  return Model(opened.open(folder, step=step, part=part, execution=Execution(dtype=dtype)), batch_size)


class Model:
  """An open folder, asked by its methods; `load` makes it.

  Every method takes one text or a list of them. All raise a ConfigError where the folder was not trained for what is
  asked, and for arguments that are none.
  """

  def __init__(self, folder: opened.Opened, batch_size: int):
    """Reads nothing yet.

    Args:
      folder: which is open.
      batch_size: rows that are computed at a time.
    """
    self.folder = folder
    self.batch_size = batch_size

  def __repr__(self) -> str:
    part = f', part={self.folder.part!r}' if self.folder.part else ''
    return f'plm_jax.load({str(self.folder.folder)!r}{part})'

  @functools.cached_property
  def _task(self) -> tasks.Asked:
    return tasks.open_task(self.folder)

  @functools.cached_property
  def _writer(self) -> opened.Opened:
    return translating.writer(self.folder)

  def encode(
    self, texts: Texts, *, layer: int | Literal['all'] | Sequence[int] | np.ndarray = -1, pool: Pool = 'mean'
  ) -> np.ndarray | TokenVectors | list[TokenVectors]:
    """Texts as vectors: the states of the network, of an encoder-decoder those of its encoder.

    A text stands between the special tokens of the folder's tokenizer. One that is longer than the learned positions of
    the network is read in windows that overlap by half, and each token is taken from the window with most around it.

    Args:
      texts: of any length.
      layer: -1 is the output, after any final norm, 0 the embeddings; several, or 'all'.
      pool: 'mean' of all tokens, special ones included; the 'first' or the 'last' token; 'none' for all tokens.

    Returns:
      f32[n, d] for n texts, f32[n, k, d] for k layers (of one text without n). With pool='none' a `TokenVectors` for
      each text: names of tokens, and f32[l, d] or f32[l, k, d].
    """
    with errors.stage('encode'):
      errors.one_of('pool', pool, Pool)
    layers = vectors.layers_of(self.folder, layer)
    one_layer = vectors.is_number(layer)

    def ask(several: Sequence[str]) -> list[Any]:
      found = vectors.encode(self.folder, several, layers=layers, pool=pool, rows=self.batch_size)
      if not one_layer:
        return list(found)
      if pool == 'none':
        return [each._replace(vectors=each.vectors[:, 0]) for each in found if isinstance(each, TokenVectors)]
      return [each[0] for each in found]

    made = _each('encode', texts, ask)
    if pool == 'none' or isinstance(texts, str):
      return made
    width = self.folder.trunk.hidden_dim
    shape = (len(made), width) if one_layer else (len(made), len(layers), width)
    return np.array(made, np.float32).reshape(shape)

  def fill(self, texts: Texts, *, top: int = 5) -> Filled | list[Filled]:
    """The likeliest words for each blank, `[MASK]` or as the folder's vocabulary writes it.

    Of an encoder-decoder, the text that it writes there, whose blanks may be sentinels (`<extra_id_0>`).

    Args:
      texts: with a blank or more.
      top: words for each blank.

    Returns:
      `Filled` for each text: `text` and `blanks`, for each blank a list of (word, probability), likeliest first.
    """
    tasks.check(self.folder, 'fill')
    number = _count('top', top)
    return _each('fill', texts, lambda several: fill_mask.fill(self.folder, several, top=number, rows=self.batch_size))

  def score(
    self, texts: Texts
  ) -> LogProbability | PseudoLogLikelihood | list[LogProbability] | list[PseudoLogLikelihood]:
    """How likely texts are, in nats.

    Returns:
      for each text, of a decoder `LogProbability`: sum_t log p(x_t | x_<t) and the number of tokens in it, which is
      every token but the first. Of a masked language model `PseudoLogLikelihood` (Salazar et al. 2020), which is no
      probability: each token is hidden once and scored by all others.
    """
    tasks.check(self.folder, 'score')
    ask: Any = functools.partial(likelihood.score, self.folder, rows=self.batch_size)
    return _each('score', texts, ask)

  def generate(self, prompts: Texts, **given: Any) -> str | list[str] | list[list[str]]:
    """Continues prompts, writes what answers them (encoder-decoders), or fills the blank in them (GLM).

    Args:
      prompts: of any length that the network has positions for.
      **given: the settings of `plm-jax generate`: method 'greedy', 'sample' or 'beam'; max_new (40), min_new,
        no_repeat; temperature, top_k, top_p and num_samples of 'sample'; beams, length_penalty and early_stop of
        'beam'; start, first and last, which name tokens; seed (0). What is drawn depends on all prompts of a call.

    Returns:
      the new text of each prompt, without the prompt; with num_samples a list for each.
    """
    given = settings.rename_old(given)
    for name in given:
      if name not in settings.DEFAULTS:
        raise ConfigError(
          f'generate: there is no setting {name!r}.{errors.suggest(name, settings.DEFAULTS)} There are '
          f'{", ".join(settings.DEFAULTS)}'
        )
    asked = {**settings.DEFAULTS, **given}
    tasks.check(self.folder, 'generate')

    def ask(several: Sequence[str]) -> list[Any]:
      settings.check(asked, several)
      made = continued.write(self._writer, several, asked, rows=self.batch_size)
      texts = [[one.new for one in each] for each in made]
      return texts if asked['num_samples'] else [each[0] for each in texts]

    return _each('generate', prompts, ask)

  def classify(self, texts: str | Fields | Sequence[str | Fields]) -> Any:
    """The class of each text, or its value, by a run with the adapter `classify`, `similarity` or `cloze`.

    Here and below, a release or an import of such a network does as well.

    Args:
      texts: a string for one text, a tuple of strings for a pair, or for all fields that the run reads: of COPA
        (choice1, choice2, premise, question), and a list for one that holds a list, ReCoRD's entities; or a list of
        those.

    Returns:
      for each {'label': name, 'probabilities': {name: float}}, by options where each row has its own; of a regression
      {'value': float}. A text that is longer than the rows of the run loses its end, as in training; of a release,
      than its positions, 512 where it learned none.
    """
    tasks.check(self.folder, 'classify')
    ask = functools.partial(self._reply, replies.classify)
    return _each('classify', texts, ask, one=lambda given: isinstance(given, str | tuple), is_text=_is_fields)

  def tag(self, texts: Texts | Sequence[Sequence[str]]) -> Any:
    """The label of every word, by a run with the adapter `tag`.

    Args:
      texts: a string, which is cut into words and signs; or a list of strings and of lists of words.

    Returns:
      for each text a list of {'word', 'tag', 'probability', 'start', 'end'}, with the characters of the word in a
      string. Texts of any length are read, in windows.
    """
    tasks.check(self.folder, 'tag')
    ask = functools.partial(self._reply, replies.tag)
    return _each('tag', texts, ask, is_text=lambda text: isinstance(text, str) or _is_words(text))

  def parse(self, texts: Texts | Sequence[Sequence[str]]) -> Any:
    """The head of every word and the relation to it, by a run with the adapter `parse`.

    Args:
      texts: a string, which is cut into words and signs; or a list of strings and of lists of words.

    Returns:
      for each text a list of {'word', 'head', 'relation', 'probability', 'start', 'end'}: the head is the number of a
      word from 1, or 0 for a root. Each word has its likeliest arc, so that what is found need not be a tree. A text
      has to fit into a row of the run.
    """
    tasks.check(self.folder, 'parse')
    ask = functools.partial(self._reply, replies.parse)
    return _each('parse', texts, ask, is_text=lambda text: isinstance(text, str) or _is_words(text))

  def answer(self, question: Texts, context: Texts, *, best: int = 3) -> Any:
    """The part of a text that answers a question, by a run with the adapter `span`.

    Args:
      question: one, or a list.
      context: the text, or as many.
      best: answers to name.

    Returns:
      for each question {'text', 'start', 'end', 'probability', 'best'}: the answer, its characters in the context, and
      the `best` likeliest answers. '' and None where the run says that there is none (SQuAD 2). The probability is a
      softmax over all answers found, of which `best` names some: the `n_best` likeliest parts of each window that the
      run reads the context in (20 unless its adapter says otherwise) and, where it knows of texts without an answer,
      none.
    """
    alone = isinstance(question, str)
    questions, contexts = ([question], [context]) if alone else (question, context)
    listed = _is_list(questions) and _is_list(contexts)
    if alone != isinstance(context, str) or not listed or len(questions) != len(contexts):
      raise ConfigError('answer: give a question and a text, or two lists of the same length')
    number = _count('best', best)
    tasks.check(self.folder, 'answer')
    ask = functools.partial(self._reply, functools.partial(replies.answer, best=number))
    found = _each('answer', list(zip(questions, contexts, strict=True)), ask, is_text=_is_row)
    return found[0] if alone else found

  def choose(self, texts: str | Pair | Sequence[str | Pair], options: Sequence[Any]) -> Any:
    """The right one of several options, by a run with the adapter `choose`.

    Args:
      texts: what the options belong to: a string, or a tuple of strings where the run reads several (the context and
        the question of RACE); or a list of those.
      options: of the text, or a list of lists.

    Returns:
      for each {'option', 'number', 'probabilities'}: the text that is chosen, its place, the probability of each.
    """
    alone = isinstance(texts, str | tuple)
    stems, choices = ([texts], [options]) if alone else (texts, options)
    same = _is_list(stems) and _is_list(choices) and len(stems) == len(choices)
    if not same or not all(map(_is_row, stems)) or not all(map(_is_words, choices)):
      raise ConfigError('choose: give a text and a list of options, or a list of texts and as many lists of options')
    tasks.check(self.folder, 'choose')
    ask = functools.partial(self._reply, replies.choose)
    found = _each('choose', list(zip(stems, choices, strict=True)), ask, is_text=lambda item: True)
    return found[0] if alone else found

  def _reply(self, reply: Callable[..., list[Any]], given: Sequence[Any]) -> list[Any]:
    """What a fine-tuned run says."""
    return reply(self._task, given, rows=self.batch_size)


# Arguments -----------------------------------------------------------------------------------------------------------


def _is_text(text: Any) -> bool:
  return isinstance(text, str)


def _each(
  name: str,
  given: Any,
  ask: Callable[[Sequence[Any]], list[Result]],
  *,
  one: Callable[[Any], bool] = lambda given: isinstance(given, str),
  is_text: Callable[[Any], bool] = _is_text,
) -> Any:
  """The result of one text, or the list of those of several.

  Args:
    name: of the method, for messages.
    given: by the caller.
    ask: texts -> their results.
    one: whether a text was given and no list.
    is_text: whether an item of a list is a text.

  Raises:
    ConfigError: neither a text nor a list of texts.
  """
  alone = one(given)
  texts = [given] if alone else given
  if not _is_list(texts):
    raise ConfigError(f'{name}: takes a text or a list of texts, and this is {type(given).__name__}')
  for number, text in enumerate(texts):
    if not is_text(text):
      raise ConfigError(f'{name}: text {number} of the list is {type(text).__name__}, and no text: {text!r}')
    if not all(map(files.is_unicode, _strings(text))):
      raise ConfigError(f'{name}: text {number} has half a character, which is no Unicode: {text!a}')
  found = ask(list(texts)) if len(texts) else []
  return found[0] if alone else found


def _strings(given: Any) -> Iterator[str]:
  """The strings in lists and tuples of any depth."""
  if isinstance(given, str):
    yield given
  elif isinstance(given, list | tuple):
    for item in given:
      yield from _strings(item)


def _is_list(given: Any) -> bool:
  array = isinstance(given, np.ndarray) and given.ndim > 0
  return array or (isinstance(given, Sequence) and not isinstance(given, str | bytes))


def _is_row(row: Any) -> bool:
  return isinstance(row, str) or (isinstance(row, tuple) and all(isinstance(text, str) for text in row))


def _is_fields(row: Any) -> bool:
  return isinstance(row, str) or (isinstance(row, tuple) and all(isinstance(one, str) or _is_words(one) for one in row))


def _is_words(words: Any) -> bool:
  return isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)


def _count(name: str, value: Any) -> int:
  if not isinstance(value, int) or isinstance(value, bool) or value < 1:
    raise ConfigError(f'{name}={value!r}; a whole number from 1 on')
  return value
