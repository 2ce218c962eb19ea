"""Text to text: summaries, translations, every task as text (Raffel et al. 2020, §2.4; Lewis et al. 2019, §3.3).

The loss is the cross-entropy of each target token; `label_smoothing` spreads a share of it evenly over the vocabulary
(Szegedy et al. 2016, §7). An evaluation generates text with the settings of `decoding` if it has a score that reads
text (`eval.NAME.scores`), and compares it with the references in the data. To rank options by their likelihood instead,
evaluate the run's folder with the adapter `prompt`.

Encoder-decoders read the text with their encoder. Other trunks read text and target in one sequence, so the text is a
prompt. The data contain the mark before the target: 'TL;DR:', 'english = ' (Radford et al. 2019, §3.6 and §3.7). GLM
writes into the blank of the text, or into the mask after it (layout='glm').
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
from plm_jax.core.keywords import Count, NonNegativeInt, PartRate, Seed, Temperature
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.generate import constraints
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum

PAPER = Supervised(year=2019, title='T5 §2.4, BART §3.3')
READS = ('tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')


class Decoding:
  """Settings of text generation in an evaluation; keywords of `generate.rules`.

  Attributes:
    method: 'greedy', 'beam' or 'sample'.
    max_new: maximum number of tokens, including the end token; None is the target length of the data.
    min_new: minimum number of tokens before the end token.
    beams: beam width.
    length_penalty: texts are compared by log-probability / length ** length_penalty.
    early_stop: when a search ends, see `generate.rules.Beam`.
    no_repeat: size of n-grams that may not repeat; 0 allows all.
    temperature: divisor of the logits when sampling.
    top_k: number of best tokens to sample from.
    top_p: probability mass of the best tokens to sample from.
    last: last token of a text of `max_new` tokens.
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


class SequenceSettings(NamedTuple):
  """Reader, loss and decoding."""

  reader: Reader
  label_smoothing: float  # share of the loss that is spread evenly over the vocabulary
  decoding: Mapping[str, Any]  # keywords of `generate`, without `max_new` if it is None
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
  first_line: bool | None = None,
) -> Task:
  """Generate a text from a text.

  Args:
    trunk: an encoder-decoder, a causal trunk, or one with a prefix.
    vocab: vocabulary of the data, with an end token, which ends the targets.
    start: first token of the decoder: 'pad' (T5, the default of encoder-decoders), 'eos' (BART), 'bos' (the default of
      trunks with a prefix). A causal trunk has none.
    mask: token of the blank that a GLM fills; None is the vocabulary's mask.
    label_smoothing: share of the loss that is spread evenly over the vocabulary (BART: .1).
    decoding: how an evaluation generates text.
    logit_rows: examples on each device whose logits are in memory at a time.
    first_line: predictions end with their first line, as a model that was not trained on the task writes no end token.

  Raises:
    ValueError: a trunk that generates no text, no end token, or settings of `decoding` that contradict each other.
  """
  if vocab.eos_id is None:
    raise ValueError("adapter 'sequence' needs a vocabulary with an end token: name one in vocab.roles")
  reader = answers.make_reader(trunk, vocab, user="adapter 'sequence'", start=start, mask=mask, rows=logit_rows)
  settings, seed = decoding_settings(decoding, vocab, reader)
  s = SequenceSettings(reader=reader, label_smoothing=label_smoothing, decoding=settings, seed=seed)
  return Task(
    model=Model(trunk),
    prepare=partial(prepare, s),
    loss=partial(loss, s),
    predict=partial(predict, s),
    summary=perplexity_of,
    scores=('match',),
    words=('text', 'label', 'value'),
    in_words=partial(in_words, vocab, first_line=bool(first_line)),
  )


def decoding_settings(decoding: Mapping[str, Any], vocab: Vocab, reader: Reader) -> tuple[dict[str, Any], int]:
  """Convert `decoding` to keywords of `generate` and a seed.

  Raises:
    ValueError: an invalid value, or an unknown token.
  """
  given = {name: value for name, value in decoding.items() if value is not None}
  errors.one_of('adapter.decoding.method', given.get('method', 'greedy'), constraints.Method)
  seed = given.pop('seed', 0)
  for end in ('first', 'last'):
    if end in given:
      given[f'{end}_id'] = vocab.id(given.pop(end))
  settings = {'eos_id': vocab.eos_id, 'pad_id': vocab.pad_id, 'vocab_size': vocab.size, **given}
  checked = {name: value for name, value in settings.items() if name not in ('method', 'max_new')}
  constraints.group(settings.get('method', 'greedy'), settings.get('max_new', 2**20), checked)
  return settings | ({} if reader.start_id is None else {'start_id': reader.start_id}), seed


def prepare(s: SequenceSettings, root: Array, batch: Batch) -> Example:
  """Prepare texts, targets, and prompts for generation."""
  texts_and_targets = tuple(batch[name] for name in READS)
  weights = (batch['target_segment_ids'] > 0) * batch['row_weight'][:, None]
  prompts = {name: batch[name] for name in ('tokens', 'segment_ids', 'row_id')}
  targets = {'ids': batch['target_tokens'], 'weights': weights, 'scale': batch_scale(weights)}
  return Example(answers.read(s.reader, *texts_and_targets), targets | prompts)


def loss(s: SequenceSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the target tokens."""
  targets, weights = example.targets, example.targets['weights']
  length = targets['tokens'].shape[1]
  scored = answers.score(s.reader, forward, example.inputs, targets['ids'], length=length)
  trained, metrics = scored.nats, {}
  if s.label_smoothing:
    trained = (1 - s.label_smoothing) * scored.nats + s.label_smoothing * scored.others
    metrics['smoothed_loss'] = metric(trained, weights)
  metrics |= {'loss': metric(scored.nats, weights), 'token_accuracy': metric(scored.correct, weights)}
  return Loss(scaled_sum(trained, weights, targets['scale']), metrics)


def predict(s: SequenceSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Generate text: tokens, their number and their score.

  `pad_id` follows the end, see `generate.rules.Generated`.
  """
  targets = example.targets
  text = targets['tokens'], targets['segment_ids']
  settings = {'max_new': targets['ids'].shape[1], **s.decoding}
  if s.reader.kind == 'blank':
    settings['blank'] = answers.blank_of(s.reader, *text)
  if settings.get('method') == 'sample':
    settings['rng'] = jax.random.fold_in(jax.random.key(s.seed), targets['row_id'].max())
  generated = forward(method='write', tokens=text[0], segment_ids=text[1], settings=settings)
  return {'tokens': generated.tokens, 'written': generated.lengths, 'score': generated.scores}


def in_words(
  vocab: Vocab, prediction: Mapping[str, Any], record: Mapping[str, Any], *, first_line: bool = False
) -> dict[str, Any]:
  """Decode the generated text.

  If the data have options, 'label' is the index of the option that equals the text, or -1. If the label is a number,
  'value' is the number that the text spells, or -1 (Raffel et al. 2020, §2.4). Surrounding space is ignored.
  """
  text = vocab.decode(prediction['tokens'][: int(prediction['written'])]).strip()
  readable: dict[str, Any] = {'text': text.partition('\n')[0].rstrip() if first_line else text}
  if options := [option.strip() for option in record.get('options', ())]:
    readable['label'] = options.index(text) if text in options else -1
  if isinstance(record.get('label'), float):
    readable['value'] = number_of(text)
  return readable


def number_of(text: str) -> float:
  """Parse a finite number; -1 if the text is none."""
  try:
    value = float(text)
  except ValueError:
    return -1.0
  return value if math.isfinite(value) else -1.0
