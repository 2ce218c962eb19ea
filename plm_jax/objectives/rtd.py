"""Replaced token detection (Clark et al. 2020, ELECTRA §2; arXiv 2003.10555).

A small generator fills masked positions with tokens that it samples; the trunk, the discriminator, tells at every token
whether it is the original one. Loss = 1 * generator's MLM + 50 * binary cross-entropy over all tokens. The generator
gets no gradient from the discriminator: a sample has none. The settings also hold what the paper compares with: what
the two share (§3.2), how the generator learns (§3.2 and appendix F) and what the trunk learns (§3.4, Table 5).
"""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.losses import chunked_cross_entropy, cross_entropy, perplexity
from plm_jax.noise.keys import row_keys
from plm_jax.objectives import corrupt, mlm
from plm_jax.objectives.rtd_model import SHARING, Head, Model, Sharing, check, make_generator
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2020, title='Clark et al., ELECTRA', architecture='encoder', objective_family='contrastive')

Metrics = dict[str, tuple[Array, Array]]


def put(tokens: Array, positions: Array, used: Array, values: Array) -> Array:
  """Rows [b, l] with `values` [b, t] written at `positions` int[b, t] where `used`."""
  place = jnp.where(used, positions, tokens.shape[1])
  return jax.vmap(lambda row, at, value: row.at[at].set(value, mode='drop'))(tokens, place, values)


def sample(logits: Array, draws: Array, *, temperature: float) -> Array:
  """Tokens int32[b, t] from softmax(logits / temperature), by Gumbel noise.

  Args:
    logits: f32[b, t, v].
    draws: uint32[b, 2], a threefry key for each row, so that a row's sample depends on no other.
    temperature: below 1 sharpens.
  """

  def one(key: Array, logits: Array) -> Array:
    noise = jax.random.gumbel(jax.random.wrap_key_data(key, impl='threefry2x32'), logits.shape)
    return (logits / temperature + noise).argmax(axis=-1).astype(jnp.int32)

  return jax.vmap(one)(draws, jax.lax.stop_gradient(logits))


def binary_cross_entropy(logits: Array, labels: Array) -> Array:
  """-log sigmoid of the logit where the label is true, of minus the logit where it is not: f32 of the same shape."""
  return jax.nn.softplus(jnp.where(labels, -logits, logits))


def copy_cross_entropy(nats: Array, gate: Array, copied: Array) -> Array:
  """-log of g [the input is the target] + (1 - g) p(target): the copy gate of All-Tokens MLM (§3.4).

  Args:
    nats: -log p(target) of the softmax, f32[...].
    gate: logits of g.
    copied: bool[...], whether the input token is the target.
  """
  written = -jax.nn.softplus(gate) - nats  # log (1 - g) p
  return -jnp.where(copied, jnp.logaddexp(-jax.nn.softplus(-gate), written), written)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  generator: Mapping[str, Any] | None = None,
  sharing: Sharing = 'embeddings',
  where: Mapping[str, Any] = {'name': 'with_replacement', 'rate': 0.15},
  keep: float = 0.15,
  sampling: Literal['generator', 'uniform'] = 'generator',
  temperature: float = 1.0,
  learning: Literal['likelihood', 'adversarial', 'frozen'] = 'likelihood',
  predict: Literal['all', 'masked', 'replace_mlm', 'all_tokens_mlm'] = 'all',
  generator_weight: float = 1.0,
  weight: float = 50.0,
  logit_rows: int = 8,
) -> Task:
  """Replaced token detection by a bidirectional trunk, the discriminator.

  Args:
    trunk: the discriminator.
    vocab: with a mask token.
    generator: the second trunk, as a model block: dict(name='bert', variant='electra-small-generator').
    sharing: between the two: 'embeddings', the tables of tokens, positions and sentence types and their norm, as
      released (both are trunks of models/bert.py); 'tokens', that table alone; 'all', one network with two heads;
      'none'; 'gradient_disentangled', the discriminator's token table is the generator's without gradient plus one of
      its own (DeBERTa-v3). A run that starts from it adds the two: init_from = (dict(source=...),
      dict(source=..., from_='generator/token_embed', to='trunk/token_embed'),
      dict(source=..., from_='delta', to='trunk/token_embed', add=True)).
    where: which tokens are drawn, a function of `noise.where` with its settings (ELECTRA large: rate .25). One that is
      drawn twice counts once; in the released code, twice.
    keep: share of the drawn tokens that the generator sees unmasked.
    sampling: 'uniform' puts random tokens in place, without a generator.
    temperature: of the generator's softmax when sampling.
    learning: how the generator learns: by maximum 'likelihood'; 'adversarial', by REINFORCE for the discriminator's
      loss (appendix F); 'frozen', the second of two stages, after a run of objective mlm whose trunk initialises both:
      freeze its parameters too, with optim.scale = (('(generator|mlm)/.*', None), ('.*', 1.0)).
    predict: what the trunk learns: which of 'all' tokens, or of the 'masked' (drawn) ones ("ELECTRA 15%"), were
      replaced; or the original token, at the drawn positions ('replace_mlm') or at all of them ('all_tokens_mlm', with
      a copy gate).
    generator_weight: of the generator's loss.
    weight: of the discriminator's loss; 50 fits binary losses, 1 those over the vocabulary.
    logit_rows: batch rows whose vocabulary logits are in memory at a time under 'all_tokens_mlm'.
  """
  require(trunk, user="objective 'rtd'", attention=('bidirectional',), inputs=('tokens', 'segment_ids'))
  if vocab.mask_id is None:
    raise ValueError('objective rtd needs a vocabulary with a mask token; vocab.extra adds one')
  check('sharing', sharing, SHARING)
  check('sampling', sampling, ('generator', 'uniform'))
  check('learning', learning, ('likelihood', 'adversarial', 'frozen'))
  check('predict', predict, ('all', 'masked', 'replace_mlm', 'all_tokens_mlm'))
  if not 0 <= keep <= 1 or temperature <= 0:
    raise ValueError(f'objective: keep={keep} must be in [0, 1] and temperature={temperature} must be above 0')
  uniform, detects = sampling == 'uniform', predict in ('all', 'masked')
  if uniform and learning != 'likelihood':
    raise ValueError(f"objective.learning={learning!r} needs a generator, and sampling='uniform' has none")
  if learning == 'adversarial' and not detects:
    raise ValueError(f"objective.learning='adversarial' needs predict='all' or 'masked', not {predict!r}")
  if learning == 'frozen' and sharing != 'none':
    raise ValueError(f"objective.learning='frozen' needs sharing='none': {sharing!r} would train the generator")
  second = make_generator(trunk, vocab, generator, sharing=sharing, uniform=uniform)
  c, dtype = trunk.config, trunk.execution.dtype
  model = Model(
    make_trunk=trunk.clone,
    make_generator=None if second is None else second.clone,
    sharing=sharing,
    mlm=None if uniform else mlm.make_head(second or trunk, vocab),
    rtd=Head(c.activation, c.init_std, dtype) if detects else None,
    restore=None if detects else mlm.make_head(trunk, vocab),
    gated=predict == 'all_tokens_mlm',
    rewarded=learning == 'adversarial',
    init_std=c.init_std,
  )
  choose = corrupt.pick_where(where, vocab=vocab)
  is_special = np.zeros(vocab.size, bool)
  is_special[list(vocab.special_ids)] = True
  starts = np.asarray(vocab.starts_word)

  def draw(key: Array, batch_row: Mapping[str, Array]) -> dict[str, Array]:
    row = mlm.make_row(batch_row, special=jnp.asarray(is_special), starts_word=jnp.asarray(starts))
    where_key, mask_key, sample_key = jax.random.split(key, 3)
    slots = corrupt.capacity(choose, row.ids.shape[0])
    positions, weights, excess = mlm.gather(choose(where_key, row).number > 0, slots=slots)
    hidden = (weights > 0) & (jax.random.uniform(mask_key, weights.shape) >= keep)
    ids = row.ids.at[jnp.where(hidden, positions, row.ids.shape[0])].set(vocab.mask_id, mode='drop')
    return {
      'tokens': ids,
      'predict': positions,
      'ids': row.ids[positions],
      'weights': weights,
      'excess': excess,
      'draws': jax.random.key_data(sample_key),
    }

  def prepare(root: Array, batch: Batch) -> Example:
    rows = jax.vmap(draw)(
      row_keys(root, batch, every='step'), {'tokens': batch['tokens'], 'segment_ids': batch['segment_ids']}
    )
    row_weight = batch['row_weight']
    weights = rows['weights'] * row_weight[:, None]
    real = (batch['segment_ids'] > 0).astype(jnp.float32)
    if predict == 'masked':
      real = put(jnp.zeros_like(real), rows['predict'], weights > 0, jnp.ones_like(weights))
    real = real * row_weight[:, None]
    share = lambda total: jnp.broadcast_to(1 / jnp.maximum(total, 1.0), row_weight.shape)  # noqa: E731
    inputs = {'tokens': rows['tokens'], 'segment_ids': batch['segment_ids'], 'predict': rows['predict']}
    if 'type_ids' in batch:
      inputs['type_ids'] = batch['type_ids']
    targets = {
      'original': batch['tokens'],
      'ids': rows['ids'],
      'weights': weights,
      'scale': share(weights.sum()),
      'excess': rows['excess'] * row_weight,
      'draws': rows['draws'],
      'token_weights': real,
      'token_scale': share(real.sum()),
      'row_weight': row_weight,
      'row_scale': share(row_weight.sum()),
    }
    return Example(inputs, targets)

  def corrupted(logits: Array | None, example: Example) -> tuple[Array, Array]:
    """(the rows that the discriminator reads int[b, l], the samples int[b, t])."""
    targets, places = example.targets, example.inputs['predict']
    if logits is None:
      logits = jnp.broadcast_to(jnp.zeros(vocab.size), (*places.shape, vocab.size))
    sampled = sample(logits, targets['draws'], temperature=temperature)
    return put(targets['original'], places, targets['weights'] > 0, sampled), sampled

  def read(example: Example, tokens: Array) -> dict[str, Any]:
    return {**{name: value for name, value in example.inputs.items() if name != 'predict'}, 'tokens': tokens}

  def generate(forward: Forward, example: Example) -> tuple[Array | None, Array | None]:
    if uniform:
      return None, None
    train = False if learning == 'frozen' else None
    return forward(method='generate', train=train, **example.inputs)

  def detect(forward: Forward, example: Example, tokens: Array) -> tuple[Array, Array, Metrics]:
    """(value of the loss, nats of each token f32[b, l], metrics)."""
    targets = example.targets
    weights, total = targets['token_weights'], targets['token_weights'].sum()
    logits = forward(method='detect', **read(example, tokens))
    replaced = tokens != targets['original']
    nats = binary_cross_entropy(logits, replaced)
    found = logits > 0
    both = (found & replaced) * weights
    metrics = {
      'rtd_loss': ((nats * weights).sum(), total),
      'rtd_accuracy': (((found == replaced) * weights).sum(), total),
      'rtd_precision': (both.sum(), (found * weights).sum()),
      'rtd_recall': (both.sum(), (replaced * weights).sum()),
      'replaced': ((replaced * weights).sum(), total),
    }
    return (nats * weights * targets['token_scale'][:, None]).sum(), nats, metrics

  def restore(forward: Forward, example: Example, tokens: Array) -> tuple[Array, Metrics]:
    """(value of the loss, metrics) of predicting the original tokens."""
    targets = example.targets
    hidden = forward(method='encode', **read(example, tokens))
    if predict == 'replace_mlm':
      features = jnp.take_along_axis(hidden, example.inputs['predict'][..., None], axis=1)  # [b, l, d] -> [b, t, d]
      found = mlm.score(forward(method='attend', features=features), targets)
      return found.value, {f'restore_{name}': found.metrics[name] for name in ('loss', 'accuracy')}
    attend = lambda part: forward(method='attend', features=part)  # noqa: E731
    nats, _ = chunked_cross_entropy(attend, hidden, targets['original'], rows=logit_rows)
    copied = tokens == targets['original']
    gate = forward(method='copies', features=hidden)
    nats = copy_cross_entropy(nats, gate, copied)
    weights, total = targets['token_weights'], targets['token_weights'].sum()
    metrics = {
      'restore_loss': ((nats * weights).sum(), total),
      'copy_accuracy': ((((gate > 0) == copied) * weights).sum(), total),
    }
    return (nats * weights * targets['token_scale'][:, None]).sum(), metrics

  def reinforce(
    forward: Forward, example: Example, logits: Array, features: Array, sampled: Array, nats: Array
  ) -> tuple[Array, Metrics]:
    """(value of the loss, metrics): the generator is rewarded by the discriminator's loss on its samples (appendix F).

    Where raising a sample's probability would raise that loss, this loss falls with it; the baseline takes off what
    the generator's own states tell about the reward.
    """
    targets = example.targets
    weights = targets['weights']
    reward = jax.lax.stop_gradient(jnp.take_along_axis(nats, example.inputs['predict'], axis=1))  # f32[b, t]
    expected = forward(method='expect', features=features)
    advantage = reward - jax.lax.stop_gradient(jax.nn.softplus(-expected))
    policy = advantage * cross_entropy(logits / temperature, sampled)  # -log p: descending it raises p where > 0
    fit = jax.nn.softplus(expected) - jnp.exp(-reward) * expected  # cross-entropy with the discriminator's certainty
    metrics = {
      'reward': ((reward * weights).sum(), weights.sum()),
      'baseline_loss': ((fit * weights).sum(), weights.sum()),
    }
    return ((policy + fit) * weights * targets['scale'][:, None]).sum(), metrics

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng  # samples have keys of their rows: they depend neither on micro-batches nor on devices
    targets = example.targets
    logits, features = generate(forward, example)
    tokens, sampled = corrupted(logits, example)
    metrics: Metrics = {}
    if detects:
      value, nats, metrics = detect(forward, example, tokens)
    else:
      value, metrics = restore(forward, example, tokens)
    value = weight * value
    if logits is not None and features is not None:
      found = mlm.score(logits, targets)
      metrics = metrics | {f'generator_{name}': found.metrics[name] for name in ('loss', 'accuracy')}
      metrics['targets_without_slot'] = found.metrics['targets_without_slot']
      if learning == 'likelihood':
        value = value + generator_weight * found.value
      elif learning == 'adversarial':
        gain, more = reinforce(forward, example, logits, features, sampled, nats)
        value, metrics = value + generator_weight * gain, metrics | more
    # each term is divided by the total of the whole batch: as a mean over rows, parts of a batch add up to it
    metrics['loss'] = (value / targets['row_scale'][0], targets['row_weight'].sum())
    return Loss(value, metrics)

  def predict_rows(forward: Forward, example: Example) -> dict[str, Array]:
    tokens, _ = corrupted(generate(forward, example)[0], example)
    out = {'tokens': tokens, 'weights': example.targets['token_weights']}
    if detects:
      logits = forward(method='detect', **read(example, tokens))
      return out | {'probability': jax.nn.sigmoid(logits), 'replaced': tokens != example.targets['original']}
    hidden = forward(method='encode', **read(example, tokens))
    places = example.inputs['predict']
    features = jnp.take_along_axis(hidden, places[..., None], axis=1)
    return out | {'positions': places, 'ids': forward(method='attend', features=features).argmax(axis=-1)}

  def summary(means: dict[str, float]) -> dict[str, float]:
    name = 'restore_loss' if uniform else 'generator_loss'
    return {'perplexity': perplexity(means[name])} if name in means else {}

  return Task(model, prepare, loss, predict_rows, summary=summary)
