"""Load a trained model and run it from Python.

    import plm_jax
    model = plm_jax.load('runs/bert/base')
    model.fill('Paris is the [MASK] of France .')

A folder holds a run, a converted checkpoint, or a model in Hugging Face's format with its tokenizer. A model supports
only the methods it was trained for. Any other call raises a ConfigError that lists them. A string returns one result.
A list of texts returns a list (`encode`: an array) in the order of the texts. A result does not depend on the other
texts, except samples of `generate`. Texts are batched by length (batches.py). A progress bar appears after one second.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from plm_jax.checkpoint import Step
from plm_jax.config import aliases
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Execution
from plm_jax.generate import settings
from plm_jax.inference import batches, continued, fill_mask, likelihood, opened, replies, tasks, translating, vectors
from plm_jax.inference.arguments import count, each, is_fields, is_list, is_row, is_words
from plm_jax.inference.fill_mask import Filled
from plm_jax.inference.likelihood import LogProbability, PseudoLogLikelihood
from plm_jax.inference.vectors import Pool, TokenVectors
from plm_jax.weights import sentences

Texts = str | Sequence[str]
Pair = tuple[str, ...]
Fields = tuple[str | Sequence[str], ...]
Dtype = Literal['float32', 'bfloat16', 'float16']


def load(
  folder: str | os.PathLike[str],
  *,
  step: Step = None,
  part: str | None = None,
  batch_size: int = batches.ROWS,
  dtype: Dtype = 'float32',
  layout: str | None = None,
) -> 'Model':
  """Open a folder with a model; parameters are read on first use.

  Example:
    model = plm_jax.load('runs/bert/base', step='best')
    vectors = model.encode(['A first text .', 'A second one .'])  # f32[2, d]

  Args:
    folder: a run, a converted checkpoint (`plm-jax convert import`), or a model in Hugging Face's format with its
      tokenizer.
    step: checkpoint of a run: a step, 'newest' or 'best'. None takes the best if one was saved, else the newest.
    part: task of a multi-task run, opened as a run of that task alone.
    batch_size: examples per batch, 1 or more.
    dtype: of activations and matrix products, whatever the run was trained in.
    layout: special tokens around the texts of a pretrained checkpoint with a task head, if its tokenizer writes none
      that is known, such as 'plain'.

  Raises:
    ConfigError: the folder, its model or its vocabulary is missing, or the run has no such step or task.
  """
  count('load: batch_size', batch_size)
  if not isinstance(folder, str | os.PathLike):
    raise ConfigError(f'load: expected the path of a folder, got {type(folder).__name__}')
  with errors.stage('load'):
    errors.one_of('dtype', dtype, Dtype)
  return Model(opened.open(folder, step=step, part=part, execution=Execution(dtype=dtype), layout=layout), batch_size)


class Model:
  """An open model, created by `load`.

  Every method takes one text or a list of texts. Every method raises a ConfigError if the model was not trained for
  it, or if an argument is invalid.
  """

  def __init__(self, folder: opened.Opened, batch_size: int):
    """Store the folder and the batch size; nothing is read yet."""
    self.folder = folder
    self.batch_size = batch_size

  def __repr__(self) -> str:
    part = f', part={self.folder.part!r}' if self.folder.part else ''
    return f'plm_jax.load({str(self.folder.folder)!r}{part})'

  @functools.cached_property
  def _task(self) -> tasks.OpenTask:
    return tasks.open_task(self.folder)

  @functools.cached_property
  def _writer(self) -> opened.Opened:
    return translating.writer(self.folder)

  def encode(
    self, texts: Texts, *, layer: int | Literal['all'] | Sequence[int] | np.ndarray = -1, pool: Pool | None = None
  ) -> np.ndarray | TokenVectors | list[TokenVectors]:
    """Encode texts as vectors: the hidden states of the network.

    An encoder-decoder gives the states of its encoder. A text stands between the special tokens of the folder's
    tokenizer. A text longer than the learned positions is read in windows that overlap by half. Each token is taken
    from the window with the most context around it.

    Example:
      model.encode('Paris is in France .').shape                # (d,)
      model.encode(['a text', 'another'], layer='all').shape    # (2, layers + 1, d)
      model.encode('a text', pool='none').tokens                # ['[CLS]', 'a', 'text', '[SEP]']

    Args:
      texts: one text or n texts, of any length.
      layer: 0 is the embeddings, -1 the output after any final norm. A sequence selects k layers, 'all' every layer.
      pool: 'mean' of all tokens, special tokens included; the 'first' or the 'last' token; 'none' for all tokens. None
        follows a folder of sentence-transformers (pooling, layers after it, maximum length) and a contrastive run; for
        others it is 'mean'.

    Returns:
      f32[n, d], or f32[n, k, d] for k layers; without the axis n for one text. With pool='none' a `TokenVectors` per
      text: the names of its l tokens, and f32[l, d] or f32[l, k, d].

    Raises:
      ConfigError: the network has no such layer, or it was trained on reversed text.
    """
    recipe = self.folder.recipe if pool is None else None
    with errors.stage('encode'):
      errors.one_of('pool', pool or 'mean', Pool)
      if recipe is not None and not (vectors.is_number(layer) and layer == -1):
        if not sentences.is_mean(recipe):
          raise ValueError(f"layer={layer!r}: the pooling of {self.folder.folder} is for its output: add pool='mean'")
        recipe = None
    if recipe is not None:
      compute_one = functools.partial(vectors.encode_sentences, self.folder, recipe, rows=self.batch_size)
      results = each('encode', texts, compute_one)
      return results if isinstance(texts, str) else np.array(results, np.float32)
    pool = pool or 'mean'
    layers = vectors.layers_of(self.folder, layer)
    one_layer = vectors.is_number(layer)

    def compute(batch: Sequence[str]) -> list[Any]:
      encoded = vectors.encode(self.folder, batch, layers=layers, pool=pool, rows=self.batch_size)
      if not one_layer:
        return list(encoded)
      if pool == 'none':
        return [each._replace(vectors=each.vectors[:, 0]) for each in encoded if isinstance(each, TokenVectors)]
      return [each[0] for each in encoded]

    results = each('encode', texts, compute)
    if pool == 'none' or isinstance(texts, str):
      return results
    width = self.folder.trunk.hidden_dim
    shape = (len(results), width) if one_layer else (len(results), len(layers), width)
    return np.array(results, np.float32).reshape(shape)

  def similarity(self, first: Texts, second: Texts, *, pairs: bool = False) -> float | np.ndarray:
    """Compare the vectors of texts (`encode`).

    The similarity is that of a sentence-transformers folder (`similarity_fn_name`) or of a contrastive run, else the
    cosine. Distances are negated: the nearest texts have the largest value.

    Example:
      model.similarity('A man eats.', 'Someone eats.')     # 0.82
      model.similarity(['a', 'b'], ['c', 'd', 'e']).shape  # (2, 3)

    Args:
      first: one text or n texts.
      second: one text or m texts.
      pairs: compare only texts with the same index; both lists have the same length.

    Returns:
      f32[n, m], without the axis of a single text, so a float for two of them; with pairs f32[n].
    """
    texts = [each('similarity', [side] if isinstance(side, str) else side, list) for side in (first, second)]
    if pairs and (isinstance(first, str) != isinstance(second, str) or len(texts[0]) != len(texts[1])):
      raise ConfigError('similarity: pairs=True compares the same index: give two texts, or lists of one length')
    values = vectors.similarity(self.folder, self.encode, *texts, pairs=pairs)
    if isinstance(first, str) and isinstance(second, str):
      return float(values.item())
    single = () if pairs else tuple(axis for axis, side in enumerate((first, second)) if isinstance(side, str))
    return values.squeeze(axis=single)

  def fill(self, texts: Texts, *, top: int = 5) -> Filled | list[Filled]:
    """Predict the most likely words for each blank.

    A blank is `[MASK]` or the mask token of the folder's vocabulary. An encoder-decoder generates one text per blank;
    its blanks may be sentinels (`<extra_id_0>`).

    Example:
      model.fill('Paris is the [MASK] of France .', top=2).blanks  # [[('capital', 0.93), ('city', 0.02)]]

    Args:
      texts: one text or a list, each with one blank or more.
      top: words per blank, at most the size of the vocabulary.

    Returns:
      A `Filled` per text: `text`, and `blanks`, for each blank a list of (word, probability), most likely first.

    Raises:
      ConfigError: a text has no blank, or is longer than the learned positions.
    """
    tasks.check(self.folder, 'fill')
    words = count('top', top)
    return each('fill', texts, lambda batch: fill_mask.fill(self.folder, batch, top=words, rows=self.batch_size))

  def score(
    self, texts: Texts
  ) -> LogProbability | PseudoLogLikelihood | list[LogProbability] | list[PseudoLogLikelihood]:
    """Compute the log-likelihood of texts, in nats.

    Example:
      model.score('Paris is in France .').log_probability  # -21.4, the sum over 5 tokens

    Returns:
      One result per text. A decoder gives a `LogProbability`: sum_t log p(x_t | x_<t), and the number of tokens in the
      sum (every token except the first). A masked language model gives a `PseudoLogLikelihood` (Salazar et al. 2020,
      eq. 1), which is not a probability: each token is masked once and predicted from all others.
    """
    tasks.check(self.folder, 'score')
    compute: Any = functools.partial(likelihood.score, self.folder, rows=self.batch_size)
    return each('score', texts, compute)

  def generate(self, prompts: Texts, **given: Any) -> str | list[str] | list[list[str]]:
    """Generate texts: continue prompts, answer them (encoder-decoders) or fill their blank (GLM).

    Example:
      model.generate('In the morning', max_new=20)  # ' the sun rises ...'

    Args:
      prompts: one prompt or a list, no longer than the network has positions for.
      **given: the settings of `plm-jax generate`. All methods: method ('greedy', 'sample' or 'beam'), max_new (40),
        min_new, no_repeat, seed (0), and the names of tokens start, first and last. 'sample': temperature, top_k,
        top_p, num_samples. 'beam': beams, length_penalty, early_stop. Samples depend on all prompts of a call.

    Returns:
      The new text of each prompt, without the prompt; with num_samples a list of texts per prompt.

    Raises:
      ConfigError: an unknown or invalid setting, or more tokens than the network has positions for.
    """
    given = settings.rename_old(given)
    for name in given:
      if name not in settings.DEFAULTS:
        raise ConfigError(
          f'generate: unknown setting {name!r}.{aliases.hint(name, settings.DEFAULTS, table="generate")} '
          f'Settings: {", ".join(settings.DEFAULTS)}'
        )
    options = {**settings.DEFAULTS, **given}
    tasks.check(self.folder, 'generate')

    def compute(batch: Sequence[str]) -> list[Any]:
      settings.check(options, batch)
      written = continued.write(self._writer, batch, options, rows=self.batch_size)
      texts = [[continuation.new for continuation in each] for each in written]
      return texts if options['num_samples'] else [each[0] for each in texts]

    return each('generate', prompts, compute)

  def classify(self, texts: str | Fields | Sequence[str | Fields]) -> Any:
    """Predict the class or the value of each text.

    Supported by runs with the adapter `classify`, `similarity` or `cloze`. This and the following methods also accept
    a pretrained or converted checkpoint of such a network.

    Example:
      model.classify('A great film .')  # {'label': 'positive', 'probabilities': {'negative': 0.01, 'positive': 0.99}}
      model.classify(('A man eats .', 'Someone eats .'))  # a pair of texts

    Args:
      texts: one example or a list of examples. An example is a string, or a tuple with one item per field of the run:
        a pair of texts, or COPA's (choice1, choice2, premise, question). An item is a list of strings if its field
        holds a list (the entities of ReCoRD).

    Returns:
      Per example {'label': name, 'probabilities': {name: float}}. The names are those of the options where each
      example has its own. A regression gives {'value': float}, several classes {'labels': [name, ...],
      'probabilities'}. A text that exceeds the sequence length of the run is truncated at its end, as in training. A
      pretrained checkpoint truncates at its positions, or at 512 tokens if it has no learned positions.
    """
    tasks.check(self.folder, 'classify')
    compute = functools.partial(self._reply, replies.classify)
    return each('classify', texts, compute, is_single=lambda text: isinstance(text, str | tuple), is_text=is_fields)

  def tag(self, texts: Texts | Sequence[Sequence[str]], *, as_written: bool = False) -> Any:
    """Predict the label of every word.

    Supported by runs with the adapter `tag`.

    Example:
      model.tag('Anna lives in Paris .')[0]
      # {'word': 'Anna', 'tag': 'B-PER', 'probability': 0.99, 'start': 0, 'end': 4}

    Args:
      texts: a string, which is split into words and punctuation; or a list of strings and of lists of words.
      as_written: False tokenises each word with a space before it, as training does: 'Paris.' as ' Paris .'. True
        tokenises strings as they are, which differs for vocabularies that keep spaces (GPT-2, RoBERTa, T5).

    Returns:
      Per text a list of {'word', 'tag', 'probability', 'start', 'end'}. `start` and `end` are character offsets in a
      string, and None for a list of words. A text of any length is read, in windows.
    """
    tasks.check(self.folder, 'tag')
    if as_written and not isinstance(texts, str) and not all(isinstance(text, str) for text in texts):
      raise ConfigError('tag: as_written=True is for strings, and a list of words has no spaces: leave it out')
    compute = functools.partial(self._reply, functools.partial(replies.tag, as_written=as_written))
    return each('tag', texts, compute, is_text=lambda text: isinstance(text, str) or is_words(text))

  def parse(self, texts: Texts | Sequence[Sequence[str]]) -> Any:
    """Predict the head of every word and the relation to it.

    Supported by runs with the adapter `parse`.

    Example:
      [(word['word'], word['head']) for word in model.parse('Anna sleeps .')]  # [('Anna', 2), ('sleeps', 0), ('.', 2)]

    Args:
      texts: a string, which is split into words and punctuation; or a list of strings and of lists of words.

    Returns:
      Per text a list of {'word', 'head', 'relation', 'probability', 'start', 'end'}. The head is the index of a word,
      counted from 1; 0 is the root. Each word gets its most likely arc, so the result may not be a tree.

    Raises:
      ConfigError: a text exceeds the sequence length of the run.
    """
    tasks.check(self.folder, 'parse')
    compute = functools.partial(self._reply, replies.parse)
    return each('parse', texts, compute, is_text=lambda text: isinstance(text, str) or is_words(text))

  def answer(self, question: Texts, context: Texts, *, best: int = 3) -> Any:
    """Extract the part of a context that answers a question.

    Supported by runs with the adapter `span`.

    Example:
      model.answer('Where is Anna ?', 'Anna is in Paris .')['text']  # 'Paris'

    Args:
      question: one question, or a list.
      context: one text, or a list of the same length.
      best: number of answers to list.

    Returns:
      Per question {'text', 'start', 'end', 'probability', 'best'}: the answer, its character offsets in the context,
      and the `best` most likely answers. The text is '' and its offsets are None if the run predicts that there is no
      answer (SQuAD 2). Probabilities are a softmax over all answers found: the `n_best` most likely spans of each
      window of the context (20 unless the adapter sets it). A run with unanswerable questions adds no answer.
    """
    alone = isinstance(question, str)
    questions, contexts = ([question], [context]) if alone else (question, context)
    listed = is_list(questions) and is_list(contexts)
    if alone != isinstance(context, str) or not listed or len(questions) != len(contexts):
      raise ConfigError('answer: give one question and one context, or two lists of the same length')
    answers = count('best', best)
    tasks.check(self.folder, 'answer')
    compute = functools.partial(self._reply, functools.partial(replies.answer, best=answers))
    results = each('answer', list(zip(questions, contexts, strict=True)), compute, is_text=is_row)
    return results[0] if alone else results

  def choose(self, texts: str | Pair | Sequence[str | Pair], options: Sequence[Any]) -> Any:
    """Choose one of several options.

    Supported by runs with the adapter `choose`.

    Example:
      model.choose('She opened the door and', ['left .', 'green .'])
      # {'option': 'left .', 'number': 0, 'probabilities': [0.98, 0.02]}

    Args:
      texts: what the options belong to: a string, or a tuple of strings if the run reads several fields (context and
        question of RACE); or a list of those.
      options: two or more strings for one text; a list of such lists for a list of texts.

    Returns:
      Per text {'option', 'number', 'probabilities'}: the chosen text, its index in `options` from 0, and the
      probability of each option.
    """
    alone = isinstance(texts, str | tuple)
    stems, choices = ([texts], [options]) if alone else (texts, options)
    same_length = is_list(stems) and is_list(choices) and len(stems) == len(choices)
    if not same_length or not all(map(is_row, stems)) or not all(map(is_words, choices)):
      raise ConfigError(
        'choose: give one text and a list of options, or a list of texts and a list of options for each'
      )
    tasks.check(self.folder, 'choose')
    compute = functools.partial(self._reply, replies.choose)
    results = each('choose', list(zip(stems, choices, strict=True)), compute, is_text=lambda item: True)
    return results[0] if alone else results

  def _reply(self, reply: Callable[..., list[Any]], examples: Sequence[Any]) -> list[Any]:
    return reply(self._task, examples, rows=self.batch_size)
