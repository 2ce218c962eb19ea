"""Prompts without an update: the likelihood of each option behind a text (Brown et al. 2020, §2.4).

The data write the prompt, with demonstrations where `data.shots` asks for some, and the options or the one answer. An
option is chosen by log p(option | prompt), by its mean over the option's tokens or characters, or by
log p(option | prompt) - log p(option | `against`), and all four accuracies are reported. Where the data say that an
option begins with what is read only (Winograd schemas), the rest of it is compared. Rows without options have one
answer each, which counts as right where each of its tokens is the likeliest one (LAMBADA).

Evaluation needs no training: `plm-jax evaluate --config=... --weights=FOLDER` reads a folder in Hugging
Face's form, an import or a run; a checkpoint of a run with this adapter is evaluated by `--workdir`. The loss is that
of the right answer, so that the same config can also be trained.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import answers
from plm_jax.adapters.answers import Model, Reader, Start
from plm_jax.core import errors
from plm_jax.core.types import Array, Batch, Count, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.generate.constraints import NEVER
from plm_jax.layers.losses import perplexity
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum

PAPER = Paper(
  year=2020,
  title='Brown et al., GPT-3 §2.4',
  architecture='any',
  objective_family='supervised',
  supervision='supervised',
)
READS = (
  'tokens', 'segment_ids', 'target_tokens', 'target_segment_ids', 'option_tokens', 'option_segment_ids',
  'option_lead', 'option_characters', 'label',
)  # fmt: skip

Choose = Literal['sum', 'mean', 'characters', 'against']


class Setup(NamedTuple):
  """What is read and compared.

  Attributes:
    reader: how the trunk reads a prompt and an option.
    choose: how options are compared.
    against: ids of the text that stands in place of the prompt, for 'against'.
    specials: ids of the tokens that may stand around a prompt, and then stand around that text.
  """

  reader: Reader
  choose: Choose
  against: tuple[int, ...]
  specials: tuple[int, ...]


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  choose: Choose = 'mean',
  against: str = 'Answer:',
  start: Start | None = None,
  mask: str | None = None,
  logit_rows: Count = 8,
) -> Task:
  """Compares options behind a prompt.

  Args:
    trunk: an encoder-decoder, a causal trunk, or one with a prefix.
    vocab: of the rows.
    choose: which comparison 'accuracy' and predictions take: 'sum' of the log-probabilities of an option's tokens,
      their 'mean', the sum by 'characters' of the option (acc_norm of lm-evaluation-harness), or the sum 'against' that
      behind another text (GPT-3 for ARC, OpenBookQA and RACE).
    against: this other text, between the special tokens of the prompt.
    start: what the decoder reads first, see `adapters/sequence.py`.
    mask: token of the blank that a GLM fills; None is the vocabulary's mask.
    logit_rows: rows of each device whose logits are in memory at a time, each option a row.

  Raises:
    ValueError: a trunk that writes no text, or an empty `against` where it is needed.
  """
  errors.one_of('adapter.choose', choose, Choose)
  reader = answers.make_reader(trunk, vocab, user="adapter 'prompt'", start=start, mask=mask, rows=logit_rows)
  ids = () if not against or reader.kind == 'blank' else tuple(vocab.encode(against))
  if choose == 'against' and not ids:
    what = 'a trunk that fills blanks' if reader.kind == 'blank' else f'adapter.against={against!r}'
    raise ValueError(f"adapter.choose='against' compares with options behind a text, and there is none with {what}")
  specials = tuple(i for i in vocab.special_ids if i not in (vocab.mask_id, vocab.pad_id))
  s = Setup(reader, choose, ids, specials)
  functions = partial(prepare, s), partial(loss, s), partial(predict, s)
  return Task(Model(trunk), *functions, summary=summary, evaluate=partial(evaluate, s), in_words=in_words)


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The prompt with its right answer, and the options."""
  del root
  weights = (batch['target_segment_ids'] > 0) * batch['row_weight'][:, None]
  kept = {name: batch[name] for name in READS if not name.startswith('target')}
  targets = {'ids': batch['target_tokens'], 'weights': weights, 'scale': batch_scale(weights)}
  targets |= {'row_weight': batch['row_weight']}
  return Example(answers.read(s.reader, *(batch[name] for name in READS[:4])), targets | kept)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy of the tokens of the right answers."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  scored = answers.score(s.reader, forward, example.inputs, targets['ids'], length=targets['tokens'].shape[1])
  metrics = {'loss': metric(scored.nats, weights), 'token_accuracy': metric(scored.correct, weights)}
  there = (weights.sum(axis=1) > 0).astype(jnp.float32)
  right = ((1 - scored.correct) * weights).sum(axis=1) == 0
  metrics['answer_accuracy'] = metric(right, there)
  metrics['nats_per_answer'] = ((scored.nats * weights).sum(), there.sum())
  return Loss(scaled_sum(scored.nats, weights, targets['scale']), metrics)


def evaluate(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """As `loss`, with the accuracy of each comparison where there are options."""
  found = loss(s, forward, example, carry, rng)
  targets = example.targets
  if targets['option_tokens'].shape[1] < 2:
    return found
  weights = targets['row_weight'] * (targets['label'] >= 0)
  compared = compare(s, forward, example)
  right = {name: values.argmax(axis=1) == targets['label'] for name, values in compared.items()}
  metrics = {f'accuracy_{name}': metric(values, weights) for name, values in right.items()}
  return found._replace(metrics=found.metrics | metrics | {'accuracy': metric(right[s.choose], weights)})


def compare(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """f32[b, k] for each comparison, the larger the better; -1e9 for an option without tokens that count."""
  targets = example.targets
  options, real = targets['option_tokens'], targets['option_segment_ids']
  leads, characters = targets['option_lead'], targets['option_characters']
  read = targets['tokens'], targets['segment_ids']
  total = -answers.option_nats(s.reader, forward, *read, options, real, leads=leads)
  counted = (real > 0).sum(axis=2) - leads
  there = counted > 0  # of an option that is cut its lead may be all that is left
  sizes = {'mean': counted, 'characters': characters}
  by = {name: jnp.where(there, total / jnp.maximum(size, 1), NEVER) for name, size in sizes.items()}
  found = {'sum': total, **by}
  if s.against:
    other = in_place(s.against, *read, specials=s.specials)
    alone = -answers.option_nats(s.reader, forward, *other, options, real, leads=leads)
    found['against'] = jnp.where(there, total - alone, NEVER)
  return found


def in_place(text: Sequence[int], tokens: Array, segment_ids: Array, *, specials: Sequence[int]) -> tuple[Array, Array]:
  """Another text in place of each prompt, between the special tokens that the prompt begins and ends with.

      <s> Which is red ?      ->   <s> Answer :
      which is red ? </s>     ->   Answer : </s>

  Args:
    text: n ids.
    tokens: int[b, l], prompts.
    segment_ids: int[b, l], 0 where padding.
    specials: ids of special tokens.

  Returns:
    tokens and segment ids, both int[b, n+2].
  """
  size, known = len(text), jnp.array(specials, jnp.int32)
  length = (segment_ids > 0).sum(axis=1, keepdims=True)
  first, last = tokens[:, :1], jnp.take_along_axis(tokens, jnp.maximum(length - 1, 0), axis=1)
  begins, ends = jnp.isin(first, known) & (length > 0), jnp.isin(last, known) & (length > 1)
  place = jnp.arange(size + 2) - begins  # -1 is the token before the text, `size` the one behind it
  inside = jnp.array(text, jnp.int32)[jnp.clip(place, 0, size - 1)]
  real = (place < size) | (ends & (place == size))
  found = jnp.where(place < 0, first, jnp.where(place < size, inside, jnp.where(real, last, 0)))
  return found, real.astype(segment_ids.dtype)


def predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """The option that is chosen, its share among the options, and each comparison; or nats and mean of the one answer."""
  if example.targets['option_tokens'].shape[1] < 2:
    targets, weights = example.targets, example.targets['weights']
    scored = answers.score(s.reader, forward, example.inputs, targets['ids'], length=targets['tokens'].shape[1])
    right = (((1 - scored.correct) * weights).sum(axis=1) == 0) & (weights.sum(axis=1) > 0)
    nats = (scored.nats * weights).sum(axis=1)
    return {'nats': nats, 'nats_per_token': nats / jnp.maximum(weights.sum(axis=1), 1), 'right': right}
  compared = compare(s, forward, example)
  chosen = compared[s.choose]
  shares = {'label': chosen.argmax(axis=1).astype(jnp.int32), 'probability': jax.nn.softmax(chosen, axis=1)}
  return shares | {f'log_probability_{name}': values for name, values in compared.items()}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """The text of the option that is chosen; nothing for a row without options."""
  options = record.get('options') or ()
  return {'option': options[int(prediction['label'])]} if options and 'label' in prediction else {}


def summary(means: dict[str, float]) -> dict[str, float]:
  """Perplexity of tokens, and of whole answers."""
  whole = {'answer_perplexity': perplexity(means['nats_per_answer'])} if 'nats_per_answer' in means else {}
  return {**perplexity_of(means), **whole}
