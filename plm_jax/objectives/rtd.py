"""Replaced token detection (Clark et al. 2020, ELECTRA §2; arXiv 2003.10555).

A small generator fills masked positions with tokens that it samples. The trunk, the discriminator, predicts for every
token whether it is the original one. Loss = 1 * generator's MLM + 50 * binary cross-entropy over all tokens. The
generator gets no gradient from the discriminator, since sampling has none. Settings also give the variants of the
paper: what the two share (§3.2), how the generator learns (§3.2 and appendix F), what the trunk learns (§3.4, Table 5).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Rate, Temperature, Weight
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, exact_loss, metric, perplexity_of, row_terms, scaled_sum, whole_loss
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import causal_lm, corrupt, mlm, rtd_model
from plm_jax.objectives.rtd_model import Sharing

PAPER = Paper(year=2020, title='Clark et al., ELECTRA', architecture='encoder', objective_family='contrastive')
READS = ('tokens', 'segment_ids')
MAY_READ = ('word_marks',)

Sampling = Literal['generator', 'uniform']
Learning = Literal['likelihood', 'adversarial', 'frozen']
Predicted = Literal['all', 'masked', 'replace_mlm', 'all_tokens_mlm']
Metrics = dict[str, tuple[Array, Array]]


class RtdSettings(NamedTuple):
  """Settings of the corruption and the losses; those without a comment are explained in `make`."""

  choose: Callable[..., Any]  # (key, row) -> `Spans`
  special: np.ndarray  # bool[v], tokens that are never chosen
  starts_word: np.ndarray  # bool[v]
  mask_id: int  # the token that the generator reads at a chosen position
  vocab_size: int
  keep: float
  sampling: Sampling
  temperature: float
  learning: Learning
  predict: Predicted
  generator_weight: float
  weight: float
  logit_rows: int

  @property
  def detects(self) -> bool:
    """Return True if the trunk detects tokens, False if it restores them."""
    return self.predict in ('all', 'masked')


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  generator: Annotated[Mapping[str, Any], 'models'] | None = None,
  sharing: Sharing = 'embeddings',
  where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'with_replacement', 'rate': 0.15},
  keep: Rate = 0.15,
  sampling: Sampling = 'generator',
  temperature: Temperature = 1.0,
  learning: Learning = 'likelihood',
  predict: Predicted = 'all',
  generator_weight: Weight = 1.0,
  weight: Weight = 50.0,
  logit_rows: Count = 8,
) -> Task:
  """Build replaced token detection for a bidirectional trunk, the discriminator.

  Args:
    generator: the second trunk, as a model block: dict(name='bert', variant='electra-small-generator').
    sharing: parameters that the two share: 'embeddings', the tables of tokens, positions and sentence types and their
      norm, as released (both trunks of models/bert.py); 'tokens', the token table alone; 'all', one network with two
      heads; 'none'; 'gradient_disentangled', the discriminator's token table is the generator's without gradient plus
      its own (DeBERTa-v3). `init_from` and `model.from` add the two tables when a run starts from this one, and
      subtract the generator's when this run starts from a complete table.
    where: the tokens to choose: a function of `noise/where/` with its settings (ELECTRA large: rate .25). A token
      chosen twice counts once; in the released code, twice.
    keep: share of the chosen tokens that the generator sees unmasked.
    sampling: 'uniform' replaces by random tokens, without a generator.
    temperature: of the generator's softmax when sampling.
    learning: how the generator learns: by maximum 'likelihood'; 'adversarial', by REINFORCE for the discriminator's
      loss (appendix F); 'frozen', the second of two stages, after a run of objective mlm whose trunk initialises both:
      freeze its parameters too, with optim.scale = (('(generator|mlm)/.*', None), ('.*', 1.0)).
    predict: the trunk's target: which of 'all' tokens, or of the 'masked' (chosen) ones ("ELECTRA 15%"), were replaced;
      or the original token, at the chosen positions ('replace_mlm') or at all of them ('all_tokens_mlm', with a copy
      gate).
    generator_weight: of the generator's loss.
    weight: of the discriminator's loss; 50 fits binary losses, 1 those over the vocabulary.
    logit_rows: rows of each device whose vocabulary logits are in memory at a time under 'all_tokens_mlm'.

  Raises:
    ValueError: contradictory settings, or no loss.
  """
  user, inputs = "objective 'rtd'", ('tokens', 'segment_ids')
  require(trunk, user=user, attention=('bidirectional',), inputs=inputs, offers=(Attends,))
  check(sharing, keep=keep, sampling=sampling, temperature=temperature, learning=learning, predict=predict)
  generator_learns = sampling == 'generator' and learning != 'frozen'
  corrupt.check_weights(weight=weight, **({'generator_weight': generator_weight} if generator_learns else {}))
  s = RtdSettings(
    choose=corrupt.pick_where(where, vocab=vocab), special=corrupt.special_table(vocab),
    starts_word=np.asarray(vocab.starts_word), mask_id=corrupt.find_mask(vocab, user='objective rtd'),
    vocab_size=vocab.size, keep=keep, sampling=sampling, temperature=temperature, learning=learning, predict=predict,
    generator_weight=generator_weight, weight=weight, logit_rows=logit_rows,
  )  # fmt: skip
  model = rtd_model.make_model(
    trunk,
    vocab,
    generator,
    sharing=sharing,
    uniform=sampling == 'uniform',
    detects=s.detects,
    gated=predict == 'all_tokens_mlm',
    rewarded=learning == 'adversarial',
  )
  summary = partial(perplexity_of, nats='restore_loss' if sampling == 'uniform' else 'generator_loss')
  functions = partial(prepare, s), partial(loss, s), partial(predict_rows, s)
  return Task(model, *functions, summary=summary, exact=partial(exact_loss, terms=terms_of(s)))


def terms_of(s: RtdSettings) -> dict[str, float]:
  """Return the metric of each term of the loss, and its share."""
  terms = {'rtd_loss' if s.detects else 'restore_loss': s.weight}
  if s.sampling == 'uniform':
    return terms
  of_generator = {'likelihood': ('generator_loss',), 'adversarial': ('policy_loss', 'baseline_loss')}
  return terms | dict.fromkeys(of_generator.get(s.learning, ()), s.generator_weight)


def check(
  sharing: Sharing, *, keep: float, sampling: Sampling, temperature: float, learning: Learning, predict: Predicted
) -> None:
  """Raise ValueError for invalid or contradictory settings."""
  errors.one_of('objective.sharing', sharing, Sharing)
  errors.one_of('objective.sampling', sampling, Sampling)
  errors.one_of('objective.learning', learning, Learning)
  errors.one_of('objective.predict', predict, Predicted)
  if not 0 <= keep <= 1 or temperature <= 0:
    raise ValueError(f'objective.keep={keep} must be in [0, 1], and objective.temperature={temperature} above 0')
  if sampling == 'uniform' and learning != 'likelihood':
    raise ValueError(f"objective.learning={learning!r} needs a generator: set objective.sampling='generator'")
  if learning == 'adversarial' and predict not in ('all', 'masked'):
    raise ValueError(f"objective.learning='adversarial' needs objective.predict='all' or 'masked', not {predict!r}")
  if learning == 'frozen' and sharing != 'none':
    raise ValueError(
      f"objective.learning='frozen' needs objective.sharing='none': {sharing!r} would train the generator"
    )


def prepare(s: RtdSettings, root: Array, batch: Batch) -> Example:
  """Build the generator's inputs, targets of both losses, and sampling keys."""
  tokens, segments, row_weight = batch['tokens'], batch['segment_ids'], batch['row_weight']
  rows = each_row(partial(draw, s), row_keys(root, batch, every='step'), *corrupt.text(batch))
  targets = mlm.make_targets(rows, row_weight)
  real = (segments > 0).astype(jnp.float32)
  if s.predict == 'masked':
    chosen = targets['weights'] > 0
    real = put(jnp.zeros_like(real), rows['predict'], chosen, jnp.ones_like(targets['weights']))
  real = real * row_weight[:, None]
  inputs = {'tokens': rows['tokens'], 'segment_ids': segments, 'predict': rows['predict']}
  targets |= {
    'original': tokens,
    'draws': rows['draws'],
    'token_weights': real,
    'token_scale': batch_scale(real),
    **row_terms(row_weight),
  }
  return Example(inputs | corrupt.present(batch, 'type_ids'), targets)


def draw(s: RtdSettings, key: Array, ids: Array, segments: Array, marks: Array | None = None) -> dict[str, Array]:
  """Choose and mask tokens of one row: `mlm.mask_row`'s fields, 'draws' uint32[2]."""
  row = corrupt.make_row(ids, segments, special=s.special, starts_word=s.starts_word, marks=marks)
  where_key, mask_key, sample_key = jax.random.split(key, 3)
  positions, weights, excess = corrupt.choose_targets(s.choose, where_key, row)
  masked = (weights > 0) & (jax.random.uniform(mask_key, weights.shape) >= s.keep)
  return {
    'tokens': ids.at[jnp.where(masked, positions, ids.shape[0])].set(s.mask_id, mode='drop'),
    'predict': positions,
    'ids': ids[positions],
    'weights': weights,
    'excess': excess,
    'draws': jax.random.key_data(sample_key),
  }


def generate(s: RtdSettings, forward: Forward, example: Example) -> tuple[Array, Array] | None:
  """Compute logits f32[b, t, v], states [b, t, d]; None if uniform."""
  if s.sampling == 'uniform':
    return None
  return forward(method='generate', train=False if s.learning == 'frozen' else None, **example.inputs)


def replace(s: RtdSettings, logits: Array | None, example: Example) -> tuple[Array, Array]:
  """Sample tokens int[b, t] into rows int[b, l]; return rows and samples."""
  targets, positions = example.targets, example.inputs['predict']
  if logits is None:
    logits = jnp.broadcast_to(jnp.zeros(s.vocab_size), (*positions.shape, s.vocab_size))
  if logits.shape[-1] > s.vocab_size:  # the table has more rows than the tokenizer has ids
    logits = jnp.where(jnp.arange(logits.shape[-1]) < s.vocab_size, logits, -jnp.inf)
  sampled = sample(logits, targets['draws'], temperature=s.temperature)
  return put(targets['original'], positions, targets['weights'] > 0, sampled), sampled


def read(example: Example, tokens: Array) -> dict[str, Any]:
  """Build the inputs of the discriminator."""
  return {**{name: value for name, value in example.inputs.items() if name != 'predict'}, 'tokens': tokens}


def put(tokens: Array, positions: Array, used: Array, values: Array) -> Array:
  """Write `values` [b, t] into `tokens` [b, l] where `used`, at `positions`."""
  # tokens 5 6 7   positions 2 0   used 1 0   values 9 8   ->   5 6 9; unused slots write beyond the row
  targets = jnp.where(used, positions, tokens.shape[1])
  return jax.vmap(lambda row, at, value: row.at[at].set(value, mode='drop'))(tokens, targets, values)


def sample(logits: Array, draws: Array, *, temperature: float) -> Array:
  """Sample tokens int32[b, t] from softmax(logits / temperature), by Gumbel noise.

  uint32[b, 2] `draws` are a threefry key for each row, so that the sample of a row depends on no other row.
  """

  def sample_row(key: Array, logits: Array) -> Array:
    noise = jax.random.gumbel(jax.random.wrap_key_data(key, impl='threefry2x32'), logits.shape)
    return (logits / temperature + noise).argmax(axis=-1).astype(jnp.int32)

  return jax.vmap(sample_row)(draws, jax.lax.stop_gradient(logits))


def loss(s: RtdSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the discriminator's loss and, if it learns, the generator's."""
  # samples use the keys of rows, so they depend neither on micro-batches nor on devices
  generated = generate(s, forward, example)
  logits, features = (None, None) if generated is None else generated
  tokens, sampled = replace(s, logits, example)
  if s.detects:
    value, nats, metrics = detect(forward, example, tokens)
  else:
    value, metrics = restore(s, forward, example, tokens)
  value = s.weight * value
  if logits is not None and features is not None:
    masked = mlm.score(logits, example.targets)
    metrics |= {f'generator_{name}': masked.metrics[name] for name in ('loss', 'accuracy')}
    metrics['targets_without_slot'] = masked.metrics['targets_without_slot']
    if s.learning == 'likelihood':
      value = value + s.generator_weight * masked.value
    elif s.learning == 'adversarial':
      gain, more = reinforce(s, forward, example, logits, features, sampled, nats)
      value, metrics = value + s.generator_weight * gain, metrics | more
  return Loss(value, metrics | {'loss': whole_loss(value, example.targets)})


def detect(forward: Forward, example: Example, tokens: Array) -> tuple[Array, Array, Metrics]:
  """Compute the loss of detecting replaced tokens, nats f32[b, l] and metrics."""
  targets, weights = example.targets, example.targets['token_weights']
  logits = forward(method='detect', **read(example, tokens))
  replaced = tokens != targets['original']
  nats = binary_cross_entropy(logits, replaced)
  flagged = logits > 0
  hits = ((flagged & replaced) * weights).sum()
  metrics = {
    'rtd_loss': metric(nats, weights),
    'rtd_accuracy': metric(flagged == replaced, weights),
    'rtd_precision': (hits, (flagged * weights).sum()),
    'rtd_recall': (hits, (replaced * weights).sum()),
    'replaced': metric(replaced, weights),
  }
  return scaled_sum(nats, weights, targets['token_scale']), nats, metrics


def restore(s: RtdSettings, forward: Forward, example: Example, tokens: Array) -> tuple[Array, Metrics]:
  """Compute the loss of predicting the original tokens, and its metrics."""
  targets = example.targets
  hidden = forward(method='encode', **read(example, tokens))
  if s.predict == 'replace_mlm':
    features = mlm.states_at(hidden, example.inputs['predict'])
    masked = mlm.score(forward(method='attend', features=features), targets)
    return masked.value, {f'restore_{name}': masked.metrics[name] for name in ('loss', 'accuracy')}
  nats, _ = causal_lm.score(forward, hidden, targets['original'], rows=s.logit_rows)
  copied = tokens == targets['original']
  gate = forward(method='copies', features=hidden)
  nats, weights = copy_cross_entropy(nats, gate, copied), targets['token_weights']
  metrics = {'restore_loss': metric(nats, weights), 'copy_accuracy': metric((gate > 0) == copied, weights)}
  return scaled_sum(nats, weights, targets['token_scale']), metrics


def reinforce(
  s: RtdSettings, forward: Forward, example: Example, logits: Array, features: Array, sampled: Array, nats: Array
) -> tuple[Array, Metrics]:
  """Reward the generator by the discriminator's loss on its samples (appendix F).

  This loss falls when the probability rises of a sample that raises the discriminator's loss. The baseline subtracts
  the reward that the generator's own states predict. Returns (value of the loss, metrics).

  Args:
    logits: f32[b, t, v] of the generator.
    features: [b, t, d], its states.
    sampled: int[b, t].
    nats: f32[b, l], the discriminator's loss at each token.
  """
  targets, weights = example.targets, example.targets['weights']
  reward = jax.lax.stop_gradient(jnp.take_along_axis(nats, example.inputs['predict'], axis=1))  # f32[b, t]
  expected = forward(method='expect', features=features)
  advantage = reward - jax.lax.stop_gradient(jax.nn.softplus(-expected))
  policy = advantage * cross_entropy(logits / s.temperature, sampled)  # -log p: descending it raises p where > 0
  fit = jax.nn.softplus(expected) - jnp.exp(-reward) * expected  # cross-entropy with the discriminator's certainty
  metrics = {'reward': metric(reward, weights), 'baseline_loss': metric(fit, weights)}
  metrics['policy_loss'] = metric(policy, weights)
  return scaled_sum(policy + fit, weights, targets['scale']), metrics


def binary_cross_entropy(logits: Array, labels: Array) -> Array:
  """Compute the cross-entropy of a sigmoid, elementwise in f32."""
  return jax.nn.softplus(jnp.where(labels, -logits, logits))


def copy_cross_entropy(nats: Array, gate: Array, copied: Array) -> Array:
  """Compute -log(g [copied] + (1 - g) p(target)), the copy gate (§3.4).

  `nats` are -log p(target) of the softmax, `gate` logits of g; bool[...] `copied`: the input token is the target.
  """
  written = -jax.nn.softplus(gate) - nats  # log (1 - g) p
  return -jnp.where(copied, jnp.logaddexp(-jax.nn.softplus(-gate), written), written)


def predict_rows(s: RtdSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict from the corrupted rows: replaced tokens, or the original ones."""
  generated = generate(s, forward, example)
  tokens, _ = replace(s, None if generated is None else generated[0], example)
  out = {'tokens': tokens, 'weights': example.targets['token_weights']}
  if s.detects:
    logits = forward(method='detect', **read(example, tokens))
    return out | {'probability': jax.nn.sigmoid(logits), 'replaced': tokens != example.targets['original']}
  hidden = forward(method='encode', **read(example, tokens))
  positions = example.inputs['predict']
  logits = forward(method='attend', features=mlm.states_at(hidden, positions))
  return out | {'positions': positions, 'ids': logits.argmax(axis=-1)}
