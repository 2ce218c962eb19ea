"""Text from text: summaries, translations, every task as text (Raffel et al. 2020, §2.4; Lewis et al. 2019, §3.3).

The loss is the cross-entropy of each token of the target; with `label_smoothing` a share of it goes to all tokens of
the vocabulary alike (Szegedy et al. 2016, §7). An evaluation writes text with the settings of `decoding` where it has a
score that reads text (`eval.NAME.scores`), and compares it with the texts that the data keep. To rank the options of a
row by their likelihood instead, evaluate the run's folder with the adapter `prompt`.

Encoder-decoders read the text with their encoder. Other trunks read text and target in one row, so that the text is a
prompt; what marks where the target begins stands in the data: 'TL;DR:', 'english = ' (Radford et al. 2019, §3.6 and
§3.7). GLM writes into the blank of the text, or into the mask behind it (layout='glm').
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax

from plm_jax.adapters import answers
from plm_jax.adapters.answers import Model, Reader, Start
from plm_jax.core import errors
from plm_jax.core.types import (
  Array,
  Batch,
  Count,
  Example,
  Forward,
  Loss,
  Paper,
  PartRate,
  PyTree,
  Seed,
  Task,
  Temperature,
  Vocab,
  NonNegativeInt,
)
from plm_jax.generate import constraints
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum

PAPER = Paper(
  year=2019, title='T5 §2.4, BART §3.3', architecture='any', objective_family='supervised', supervision='supervised'
)
READS = ('tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')


class Decoding:
  """How an evaluation writes text; keywords of `generate.rules`.

  Attributes:
    method: 'greedy' takes the best token, 'beam' searches, 'sample' draws.
    max_new: most tokens, the end token counted; None is the number that targets have room for.
    min_new: tokens before the end token may come.
    beams: beam width.
    length_penalty: texts are compared by log-probability / length ** length_penalty.
    early_stop: when the search of a row ends, see `generate.rules.Beam`.
    no_repeat: no n-gram of so many tokens comes twice; 0 allows it.
    temperature: divisor of the logits of draws.
    top_k: number of best tokens to draw from.
    top_p: draws from the best tokens whose probabilities reach this sum.
    seed: of draws.
    first: token that every text begins with.
    last: token that a text of `max_new` tokens ends with.
  """

  method: constraints.Method = 'greedy'
  max_new: Count | None = None
  min_new: NonNegativeInt = 0
  beams: Count = 4
  length_penalty: Annotated[float, '-100 <= x <= 100'] = 1.0
  early_stop: bool | Literal['never'] = False
  no_repeat: NonNegativeInt = 0
  temperature: Temperature = 1.0
  top_k: Count | None = None
  top_p: Annotated[float, '0 < x <= 1'] | None = None
  seed: Seed = 0
  first: str | None = None
  last: str | None = None


class Setup(NamedTuple):
  """What is read and scored.

  Attributes:
    reader: how the trunk reads a text and a target.
    label_smoothing: share of the loss that all tokens have alike.
    decoding: keywords of `generate`, but `max_new` where it is None.
    seed: of draws.
  """

  reader: Reader
  label_smoothing: float
  decoding: Mapping[str, Any]
  seed: int


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  start: Start | None = None,
  mask: str | None = None,
  label_smoothing: PartRate = 0.0,
  decoding: Annotated[Mapping[str, Any], 'adapters.sequence:Decoding'] = {},
  logit_rows: Count = 8,
) -> Task:
  """Writes a text for a text.

  Args:
    trunk: an encoder-decoder, a causal trunk, or one with a prefix.
    vocab: of the rows, with an end token, which targets end with.
    start: what the decoder reads first: 'pad' (T5, the default of encoder-decoders), 'eos' (BART), 'bos' (the default
      of trunks with a prefix). A causal trunk has none.
    mask: token of the blank that a GLM fills; None is the vocabulary's mask.
    label_smoothing: share of the loss that all tokens of the vocabulary have alike (BART: .1).
    decoding: how an evaluation writes text.
    logit_rows: rows of each device whose logits are in memory at a time.

  Raises:
    ValueError: a trunk that writes no text, no end token, or settings of `decoding` that do not fit together.
  """
  if vocab.eos_id is None:
    raise ValueError('adapter sequence needs a vocabulary with an end token; vocab.roles can name one')
  reader = answers.make_reader(trunk, vocab, user="adapter 'sequence'", start=start, mask=mask, rows=logit_rows)
  settings, seed = decoding_settings(decoding, vocab, reader)
  s = Setup(reader, label_smoothing, settings, seed)
  functions = partial(prepare, s), partial(loss, s), partial(predict, s)
  return Task(
    Model(trunk),
    *functions,
    summary=perplexity_of,
    scores=('match',),
    words=('text', 'label', 'value'),
    in_words=partial(in_words, vocab),
  )


def decoding_settings(decoding: Mapping[str, Any], vocab: Vocab, reader: Reader) -> tuple[dict[str, Any], int]:
  """Keywords of `generate`, and the seed of draws.

  Raises:
    ValueError: a value that cannot be, or no such token.
  """
  given = {name: value for name, value in decoding.items() if value is not None}
  errors.one_of('adapter.decoding.method', given.get('method', 'greedy'), constraints.Method)
  seed = given.pop('seed', 0)
  for end in ('first', 'last'):
    if end in given:
      given[f'{end}_id'] = vocab.id(given.pop(end))
  settings = {'eos_id': vocab.eos_id, 'pad_id': vocab.pad_id, **given}
  checked = {name: value for name, value in settings.items() if name not in ('method', 'max_new')}
  constraints.group(settings.get('method', 'greedy'), settings.get('max_new', 2**20), checked)
  return settings | ({} if reader.start_id is None else {'start_id': reader.start_id}), seed


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The text, the target, and what is needed to write another."""
  del root
  given = tuple(batch[name] for name in READS)
  weights = (batch['target_segment_ids'] > 0) * batch['row_weight'][:, None]
  kept = {name: batch[name] for name in ('tokens', 'segment_ids', 'row_id')}
  targets = {'ids': batch['target_tokens'], 'weights': weights, 'scale': batch_scale(weights)}
  return Example(answers.read(s.reader, *given), targets | kept)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy of the tokens of the targets."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  length = targets['tokens'].shape[1]
  scored = answers.score(s.reader, forward, example.inputs, targets['ids'], length=length)
  trained, metrics = scored.nats, {}
  if s.label_smoothing:
    trained = (1 - s.label_smoothing) * scored.nats + s.label_smoothing * scored.others
    metrics['smoothed_loss'] = metric(trained, weights)
  metrics |= {'loss': metric(scored.nats, weights), 'token_accuracy': metric(scored.correct, weights)}
  return Loss(scaled_sum(trained, weights, targets['scale']), metrics)


def predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """The tokens that are written, `pad_id` after the end, their number and their score (`generate.rules.Generated`)."""
  targets = example.targets
  text = targets['tokens'], targets['segment_ids']
  settings = {'max_new': targets['ids'].shape[1], **s.decoding}
  if s.reader.kind == 'blank':
    settings['blank'] = answers.blank_of(s.reader, *text)
  if settings.get('method') == 'sample':
    settings['rng'] = jax.random.fold_in(jax.random.key(s.seed), targets['row_id'].max())
  made = forward(method='write', tokens=text[0], segment_ids=text[1], settings=settings)
  return {'tokens': made.tokens, 'written': made.lengths, 'score': made.scores}


def in_words(vocab: Vocab, prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """The text that was written.

  Beside it 'label', the number of the option that it is, -1 for none, where rows have options; 'value', the number that
  it spells, -1 for none, where rows have one (Raffel et al. 2020, §2.4). Space around a text or an option does not
  count.
  """
  text = vocab.decode(prediction['tokens'][: int(prediction['written'])]).strip()
  found: dict[str, Any] = {'text': text}
  if options := [option.strip() for option in record.get('options', ())]:
    found['label'] = options.index(text) if text in options else -1
  if isinstance(record.get('label'), float):
    found['value'] = number_of(text)
  return found


def number_of(text: str) -> float:
  """The number that a text spells; -1 where it spells none that is finite."""
  try:
    value = float(text)
  except ValueError:
    return -1.0
  return value if math.isfinite(value) else -1.0
