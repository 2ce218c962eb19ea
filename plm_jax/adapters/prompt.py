"""Prompting without training: the likelihood of each option after a text (Brown et al. 2020, §2.4).

The data contain the prompt, with demonstrations if `data.shots` is set, and the options or one answer. An option is
chosen by log p(option | prompt), by its mean over the option's tokens or characters, or by
log p(option | prompt) - log p(option | `against`). All four accuracies are reported. If the data mark the start of an
option as context (Winograd schemas), only the rest is compared. Examples without options have one answer each, which is
right if each of its tokens is the likeliest one (LAMBADA).

Evaluation needs no training: `plm-jax evaluate --config=... --weights=FOLDER` reads a Hugging Face folder, a converted
checkpoint or a run. A checkpoint of a run with this adapter is evaluated by `--workdir`. The loss is that of the right
answer, so the same config can also be trained.
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
from plm_jax.core.keywords import Count
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.generate.constraints import NEVER
from plm_jax.layers.losses import perplexity
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum

PAPER = Supervised(year=2020, title='Brown et al., GPT-3 §2.4')
READS = (
  'tokens', 'segment_ids', 'target_tokens', 'target_segment_ids', 'option_tokens', 'option_segment_ids',
  'option_lead', 'option_characters', 'label',
)  # fmt: skip

Choose = Literal['sum', 'mean', 'characters', 'against']


class PromptSettings(NamedTuple):
  """Reader and comparison of options."""

  reader: Reader  # reader of a prompt and an option
  choose: Choose  # comparison that decides
  against: tuple[int, ...]  # ids of the text that replaces the prompt, for 'against'
  specials: tuple[int, ...]  # ids of special tokens around a prompt, which are kept around that text


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
  """Compare options after a prompt.

  Args:
    trunk: an encoder-decoder, a causal trunk, or one with a prefix.
    choose: comparison of 'accuracy' and predictions: 'sum' of the log-probabilities of an option's tokens, their
      'mean', the sum per 'characters' of the option (acc_norm of lm-evaluation-harness), or the sum 'against' the sum
      after another text (GPT-3 for ARC, OpenBookQA and RACE).
    against: this other text, between the special tokens of the prompt.
    start: first token of the decoder, see `adapters/sequence.py`.
    mask: token of the blank that a GLM fills; None is the vocabulary's mask.
    logit_rows: options on each device whose logits are in memory at a time.

  Raises:
    ValueError: a trunk that generates no text, or an empty `against` with choose='against'.
  """
  errors.one_of('adapter.choose', choose, Choose)
  reader = answers.make_reader(trunk, vocab, user="adapter 'prompt'", start=start, mask=mask, rows=logit_rows)
  ids = () if not against or reader.kind == 'blank' else tuple(vocab.encode(against))
  if choose == 'against' and not ids:
    reason = 'a trunk that fills blanks has none' if reader.kind == 'blank' else f'adapter.against={against!r} is empty'
    raise ValueError(f"adapter.choose='against' needs a second text and {reason}: set another adapter.choose")
  specials = tuple(i for i in vocab.special_ids if i not in (vocab.mask_id, vocab.pad_id))
  s = PromptSettings(reader=reader, choose=choose, against=ids, specials=specials)
  return Task(
    model=Model(trunk),
    prepare=partial(prepare, s),
    loss=partial(loss, s),
    predict=partial(predict, s),
    summary=summary,
    evaluate=partial(evaluate, s),
    in_words=in_words,
  )


def prepare(s: PromptSettings, root: Array, batch: Batch) -> Example:
  """Prepare prompts with their right answers, and the options."""
  weights = (batch['target_segment_ids'] > 0) * batch['row_weight'][:, None]
  compared = {name: batch[name] for name in READS if not name.startswith('target')}
  targets = {'ids': batch['target_tokens'], 'weights': weights, 'scale': batch_scale(weights)}
  targets |= {'row_weight': batch['row_weight']}
  return Example(answers.read(s.reader, *(batch[name] for name in READS[:4])), targets | compared)


def loss(s: PromptSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the tokens of the right answers."""
  targets, weights = example.targets, example.targets['weights']
  scored = answers.score(s.reader, forward, example.inputs, targets['ids'], length=targets['tokens'].shape[1])
  metrics = {'loss': metric(scored.nats, weights), 'token_accuracy': metric(scored.correct, weights)}
  present = (weights.sum(axis=1) > 0).astype(jnp.float32)
  right = ((1 - scored.correct) * weights).sum(axis=1) == 0
  metrics['answer_accuracy'] = metric(right, present)
  metrics['nats_per_answer'] = ((scored.nats * weights).sum(), present.sum())
  return Loss(scaled_sum(scored.nats, weights, targets['scale']), metrics)


def evaluate(s: PromptSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the loss, and the accuracy of each comparison of options."""
  result = loss(s, forward, example, carry, rng)
  targets = example.targets
  if targets['option_tokens'].shape[1] < 2:
    return result
  weights = targets['row_weight'] * (targets['label'] >= 0)
  compared = compare(s, forward, example)
  right = {name: values.argmax(axis=1) == targets['label'] for name, values in compared.items()}
  metrics = {f'accuracy_{name}': metric(values, weights) for name, values in right.items()}
  return result._replace(metrics=result.metrics | metrics | {'accuracy': metric(right[s.choose], weights)})


def compare(s: PromptSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Compute every comparison of options, f32[b, k] each.

  Larger is better; an option without tokens that count has -1e9.
  """
  targets = example.targets
  options, real = targets['option_tokens'], targets['option_segment_ids']
  leads, characters = targets['option_lead'], targets['option_characters']
  prompts = targets['tokens'], targets['segment_ids']
  # 1. log p after the prompt
  total = -answers.option_nats(s.reader, forward, *prompts, options, real, leads=leads)
  counted = (real > 0).sum(axis=2) - leads
  present = counted > 0  # a truncated option may consist of its lead only
  # 2. per token and per character
  sizes = {'mean': counted, 'characters': characters}
  means = {name: jnp.where(present, total / jnp.maximum(size, 1), NEVER) for name, size in sizes.items()}
  comparisons = {'sum': total, **means}
  # 3. minus log p after the other text
  if s.against:
    other = in_place(s.against, *prompts, specials=s.specials)
    alone = -answers.option_nats(s.reader, forward, *other, options, real, leads=leads)
    comparisons['against'] = jnp.where(present, total - alone, NEVER)
  return comparisons


def in_place(text: Sequence[int], tokens: Array, segment_ids: Array, *, specials: Sequence[int]) -> tuple[Array, Array]:
  """Replace each prompt by another text between the same special tokens.

      <s> Which is red ?      ->   <s> Answer :
      which is red ? </s>     ->   Answer : </s>

  With n ids in `text`: tokens and segment ids int[b, l] -> both int[b, n+2].
  """
  size, special_ids = len(text), jnp.array(specials, jnp.int32)
  # 1. first and last token of each prompt, and whether they are special
  length = (segment_ids > 0).sum(axis=1, keepdims=True)
  first, last = tokens[:, :1], jnp.take_along_axis(tokens, jnp.maximum(length - 1, 0), axis=1)
  begins, ends = jnp.isin(first, special_ids) & (length > 0), jnp.isin(last, special_ids) & (length > 1)
  # 2. the text between them
  index = jnp.arange(size + 2) - begins  # -1 is the token before the text, `size` the one after it
  inside = jnp.array(text, jnp.int32)[jnp.clip(index, 0, size - 1)]
  real = (index < size) | (ends & (index == size))
  replaced = jnp.where(index < 0, first, jnp.where(index < size, inside, jnp.where(real, last, 0)))
  return replaced, real.astype(segment_ids.dtype)


def predict(s: PromptSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict the option, probabilities and every comparison.

  Without options: the nats of the answer, in total and per token, and whether it is right.
  """
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
  """Return the text of the predicted option, if there are options."""
  options = record.get('options') or ()
  return {'option': options[int(prediction['label'])]} if options and 'label' in prediction else {}


def summary(means: dict[str, float]) -> dict[str, float]:
  """Compute the perplexity of tokens and of whole answers."""
  whole = {'answer_perplexity': perplexity(means['nats_per_answer'])} if 'nats_per_answer' in means else {}
  return {**perplexity_of(means), **whole}
