"""The effect of an objective's noise on a text: the original, each part of the example with marks, and rates.

`plm-jax noise` prints it, `plm-jax report` adds it to the page.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

import numpy as np

Mark = Literal['', 'special', 'predicted', 'changed', 'changed predicted', 'place']
Rows = Literal['text', 'plain', 'pair', 'counts', 'directions']
LARGEST_MASK = 48  # tokens up to which an attention mask is shown
PAIRS = 10  # pairs of words that are shown


class Word(NamedTuple):
  """A token, or the position of one: its text, and the effect of the noise on it."""

  text: str
  mark: Mark = ''


class Line(NamedTuple):
  """A part of an example."""

  label: str  # name of the part: 'reads', 'predicts', ...
  items: Sequence[tuple[Word, ...]]  # the words; a tuple groups those that belong together
  gap: str = ' '  # text between two items


def batch(kind: Rows, words: list[int], vocab: Any, *, rows: int, other: list[int]) -> dict[str, np.ndarray]:
  """Build a batch of `rows` copies of one sequence.

  Copies differ in `row_id`, so each gets different noise. The kind 'text' is [CLS] text [SEP], 'plain' the text alone,
  'pair' two halves of the text and a part of the text `other`, 'counts' pairs of words with their counts, 'directions'
  the text between begin and end, read from both sides.
  """
  arrays = {
    'row_id': np.arange(rows, dtype=np.int32),
    'epoch': np.zeros(rows, np.int32),
    'row_weight': np.ones(rows, np.float32),
  }
  if kind == 'pair':
    half = len(words) // 2
    length = len(words) + 3  # [CLS] A [SEP] B [SEP]
    for name, ids in {'first': words[:half], 'next': words[half:], 'other': other[:length]}.items():
      arrays[name] = np.tile(np.array(ids + [vocab.pad_id] * (length - len(ids)), np.int32), (rows, 1))
      arrays[f'{name}_length'] = np.full(rows, len(ids), np.int32)
    return arrays
  if kind in ('counts', 'directions'):
    found = _counts(words, vocab) if kind == 'counts' else _directions(words, vocab)
    return arrays | {name: np.tile(row, (rows, *[1] * row.ndim)) for name, row in found.items()}
  row = list(words)
  if kind == 'text' and vocab.cls_id is not None and vocab.sep_id is not None:
    row = [vocab.cls_id, *words, vocab.sep_id]
  tokens = np.tile(np.array(row, np.int32), (rows, 1))
  types = (np.arange(len(row)) > len(row) // 2).astype(np.int32)
  return arrays | {'tokens': tokens, 'segment_ids': np.ones_like(tokens), 'type_ids': np.tile(types, (rows, 1))}


def _counts(words: list[int], vocab: Any) -> dict[str, np.ndarray]:
  """Count pairs of words at most 15 words apart, like GloVe."""
  from plm_jax.data import cooccurrence  # loads jax

  ids = np.array([word for word in words if word not in vocab.special_ids], np.int64)
  keys, counts = cooccurrence.pairs_of(ids, np.zeros_like(ids), old=0, window=15, vocab_size=vocab.size)
  order = np.argsort(-counts, kind='stable')
  pairs = {'tokens': keys[order] // vocab.size, 'neighbours': keys[order] % vocab.size}
  row = {name: value.astype(np.int32) for name, value in pairs.items()}
  return row | {'segment_ids': np.ones_like(row['tokens']), 'cooccurrence': counts[order].astype(np.float32)}


def _directions(words: list[int], vocab: Any) -> dict[str, np.ndarray]:
  """Build the two streams of a bidirectional language model."""
  whole = np.array([vocab.bos_id, *words, vocab.eos_id], np.int32)
  #      forward reads <s> a b, predicts a b </s>      backward reads </s> b a, predicts b a <s>
  row = {'next_tokens': whole[1:], 'backward_next_tokens': whole[-2::-1], 'segment_ids': np.ones_like(whole[1:])}
  characters = np.zeros((len(whole) - 1, 50), np.int32)  # not shown
  return row | {'tokens': whole[:-1], 'characters': characters, 'backward_characters': characters}


def examples(prepare: Callable[..., Any], arrays: Mapping[str, Any], *, seed: int, draws: int) -> list[Any]:
  """Apply the noise of first steps to a batch: a `types.Example` each."""
  import jax

  from plm_jax.noise.keys import noise_root, with_step

  # no optimisation: compiling takes longer than running
  options: Any = {'xla_backend_optimization_level': 0} if jax.default_backend() == 'cpu' else None
  compiled = jax.jit(lambda root, rows, step: prepare(root, with_step(rows, step)), compiler_options=options)
  root = noise_root(jax.random.key(seed))
  return [jax.device_get(compiled(root, arrays, step)) for step in range(draws)]


def lines(example: Any, before: np.ndarray | None, vocab: Any) -> list[Line]:
  """List an example's first row; `before` int[rows, length] are tokens before noise."""
  inputs, targets = example.inputs, example.targets
  for key, shown in (('logs', _counted), ('pairs', _windows), ('backward', _both_ways)):
    if key in inputs or key in targets:
      return shown(inputs, targets, vocab)
  out = []
  wanted: set[int] = set()
  if 'predict' in inputs and 'weights' in targets:
    wanted = {int(p) for p, w in zip(inputs['predict'][0], targets['weights'][0], strict=True) if w > 0}
  for name, label in (('tokens', 'reads'), ('encoder_tokens', 'encoder reads'), ('decoder_tokens', 'decoder reads')):
    if name not in inputs:
      continue
    ids = inputs[name][0]
    real = int((inputs[name.replace('tokens', 'segment_ids')][0] > 0).sum())
    changed = set()
    if before is not None and name == 'tokens' and len(ids) == before.shape[1]:
      changed = set(np.flatnonzero(ids[:real] != before[0, :real]).tolist())
    out.append(Line(label, marked(ids[:real], vocab, wanted=wanted, changed=changed)))
  for name in ('positions', 'block_positions'):
    if name in inputs:
      real = int((inputs['segment_ids'][0] > 0).sum())
      out.append(Line(name.replace('_', ' '), [(Word(str(position)),) for position in inputs[name][0][:real]]))
  if 'draws' in targets:  # a generator replaces tokens, and the discriminator finds them
    return [out[0]._replace(label='generator reads'), *_replaced(inputs, targets, vocab)]
  if 'candidates' in targets:  # two copies of a text
    other = [Line('second copy', out[0].items)] if 'other_tokens' not in inputs else []
    return [out[0]._replace(label='first copy'), *other, *out[1:], *_targets(inputs, targets, vocab)]
  return [*out, *_targets(inputs, targets, vocab), *_masks(inputs)]


def _replaced(inputs: Any, targets: Any, vocab: Any) -> list[Line]:
  """Show the tokens of a generator that samples words by frequency."""
  import jax.numpy as jnp

  from plm_jax.objectives import rtd

  counts = np.asarray(vocab.counts if vocab.counts is not None else np.ones(vocab.size), np.float32)
  shares = jnp.log(jnp.where(jnp.isin(jnp.arange(vocab.size), jnp.array(vocab.special_ids)), 0.0, counts))
  positions, used = inputs['predict'][:1], targets['weights'][:1] > 0
  sampled = rtd.sample(jnp.broadcast_to(shares, (*positions.shape, vocab.size)), targets['draws'][:1], temperature=1.0)
  tokens = np.asarray(rtd.put(targets['original'][:1], positions, used, sampled))[0]
  labels = (tokens != targets['original'][0]).astype(int)
  changed = set(np.flatnonzero(labels).tolist())
  written = sorted(zip(positions[0][used[0]].tolist(), np.asarray(sampled)[0][used[0]].tolist(), strict=True))
  words = [(Word(str(position), 'place'), *marked([token], vocab)[0]) for position, token in written]
  return [
    Line('generator fills', words, gap='  '),
    Line('reads', marked(tokens, vocab, changed=changed)),
    Line('labels', [(Word(str(label), 'predicted' if label else ''),) for label in labels]),
  ]


def _counted(inputs: Any, targets: Any, vocab: Any) -> list[Line]:
  """Show the most frequent pairs of words with their targets and weights."""
  items = []
  for i in range(min(PAIRS, len(inputs['tokens'][0]))):
    pair = marked([inputs['tokens'][0][i], inputs['neighbours'][0][i]], vocab)
    numbers = f'log count {targets["logs"][0][i]:.2f}, weight {targets["weights"][0][i]:.3f}'
    items.append((*pair[0], *pair[1], Word(numbers, 'predicted')))
  return [Line('pair', [item]) for item in items]


def _windows(inputs: Any, targets: Any, vocab: Any) -> list[Line]:
  """Show words after subsampling, and pairs or bags with their negatives."""
  tokens, pairs, words = (inputs[name][0] for name in ('tokens', 'pairs', 'words'))
  real = np.flatnonzero(targets['weights'][0] > 0)
  length = int(pairs[real].max()) + 1 if pairs.dtype != bool else int(real.max(initial=-1)) + 1
  out = [Line('after subsampling', marked(tokens[:length], vocab))]
  for i in real[:PAIRS].tolist():
    if pairs.dtype == bool:  # a bag: the neighbours of a word
      offsets = [o - pairs.shape[1] // 2 for o in range(pairs.shape[1])]
      read = [tokens[i + o + (o >= 0)] for o, is_in in zip(offsets, pairs[i], strict=True) if is_in]
    else:
      read = [tokens[pairs[i][0]]]
    true, *negatives = (word for (word,) in marked(words[i], vocab, wanted={0}, changed=set(range(1, len(words[i])))))
    item = [*(word for (word,) in marked(read, vocab)), Word('→', 'place'), true, Word('and not', 'place'), *negatives]
    out.append(Line('pair', [tuple(item)]))
  return out


def _both_ways(inputs: Any, targets: Any, vocab: Any) -> list[Line]:
  """Show what each direction predicts, in the order in which it reads."""
  halves = np.split(targets['ids'][0], 2)
  ends = {'forward': vocab.bos_id, 'backward': vocab.eos_id}
  out = []
  for (name, begin), ids in zip(ends.items(), halves, strict=True):
    out.append(Line(f'{name} reads', marked([begin, *ids[:-1]], vocab)))
    out.append(Line('predicts', marked(ids, vocab, wanted=set(range(len(ids))))))
  return out


def _targets(inputs: Any, targets: Any, vocab: Any) -> list[Line]:
  """List the targets: tokens, with positions if they have some, and labels."""
  out = []
  if 'ids' in targets and 'weights' in targets:
    chosen = targets['weights'][0] > 0
    ids = targets['ids'][0][chosen]
    where = inputs.get('predict', inputs.get('target_positions'))
    if where is not None:
      items = sorted(zip(where[0][chosen].tolist(), ids.tolist(), strict=True))
      words = [(Word(str(position), 'place'), *marked([token], vocab, wanted={0})[0]) for position, token in items]
      out.append(Line('predicts', words, gap='  '))
    else:
      out.append(Line('predicts', marked(ids, vocab, wanted=set(range(len(ids))))))
  for name in ('label', 'labels', 'pair_label'):
    if name in targets and targets[name].ndim == 1:
      out.append(Line('label', [(Word(str(targets[name][0])),)]))
  return out


def _masks(inputs: Any) -> list[Line]:
  out = []
  for name in ('allowed', 'permutation_mask'):
    if name in inputs and inputs[name].ndim == 3 and inputs[name].shape[-1] <= LARGEST_MASK:
      out.append(Line('may look at', [(Word('one line per token, ■ where it may look'),)]))
      out += [Line('', [(Word(''.join('■' if cell else '·' for cell in row)),)]) for row in inputs[name][0]]
  return out


def rates(example: Any, before: np.ndarray | None) -> str:
  """Summarise the rates of changed tokens and targets, and mean lengths."""
  inputs, targets = example.inputs, example.targets
  if 'pairs' in inputs or 'logs' in targets:
    counts = (targets['weights'] > 0).sum(axis=1)
    return f'{counts.mean():.1f} pairs or bags (mean of {len(counts)} rows)'
  if before is None:  # a pair: the length of the joined row
    length, rows = (inputs['segment_ids'] > 0).sum(axis=1).mean(), len(inputs['segment_ids'])
  else:
    length, rows = before.shape[1], before.shape[0]
  parts = []
  if before is not None and 'tokens' in inputs and inputs['tokens'].shape == before.shape:
    parts.append(f'{(inputs["tokens"] != before).mean():.1%} of the tokens changed')
  if 'weights' in targets and 'ids' in targets:
    parts.append(f'{(targets["weights"] > 0).sum(axis=1).mean() / length:.1%} as many targets as tokens')
  for side in ('encoder', 'decoder'):
    if f'{side}_segment_ids' in inputs:
      parts.append(f'{side} reads {(inputs[f"{side}_segment_ids"] > 0).sum(axis=1).mean():.1f} of {length} tokens')
  return f'{", ".join(parts) or "nothing to count"} (mean of {rows} rows)'


def marked(
  ids: Sequence[int] | np.ndarray, vocab: Any, *, wanted: Set[int] = frozenset(), changed: Set[int] = frozenset()
) -> list[tuple[Word, ...]]:
  """Mark tokens; `wanted` and `changed` hold positions."""
  special = set(vocab.special_ids)
  out: list[tuple[Word, ...]] = []
  for position, token_id in enumerate(np.asarray(ids).tolist()):
    token = vocab.token(token_id).replace('Ġ', ' ').strip() or '␣'
    mark: Mark = 'predicted' if position in wanted else 'special' if token_id in special else ''
    if position in changed:
      mark = 'changed predicted' if position in wanted else 'changed'
    out.append((Word(token, mark),))
  return out
