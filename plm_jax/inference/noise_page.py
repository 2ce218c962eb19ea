"""The effect of an objective's noise on a text: the original, each part of the example with marks, and rates.

`plm-jax noise` prints it, `plm-jax report` adds it to the page.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

import numpy as np

Mark = Literal['', 'special', 'predicted', 'changed', 'changed predicted', 'place']
Rows = Literal['text', 'plain', 'pair']
LARGEST_MASK = 48  # tokens up to which an attention mask is shown


class Word(NamedTuple):
  """A token, or the position of one.

  Attributes:
    text: to show.
    mark: the effect of the noise on it.
  """

  text: str
  mark: Mark = ''


class Line(NamedTuple):
  """A part of an example.

  Attributes:
    label: name of the part: 'reads', 'predicts', ...
    items: the words; a tuple groups those that belong together.
    gap: text between two items.
  """

  label: str
  items: Sequence[tuple[Word, ...]]
  gap: str = ' '


def batch(kind: Rows, words: list[int], vocab: Any, *, rows: int, other: list[int]) -> dict[str, np.ndarray]:
  """Build a batch of `rows` copies of one sequence.

  Copies differ in `row_id`, so each gets different noise.

  Args:
    kind: 'text' is [CLS] text [SEP], 'plain' the text alone, 'pair' two halves of the text and a part of another one.
    words: the ids of the text.
    vocab: a `types.Vocab`.
    rows: number of copies.
    other: the ids of another text.
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
  row = list(words)
  if kind == 'text' and vocab.cls_id is not None and vocab.sep_id is not None:
    row = [vocab.cls_id, *words, vocab.sep_id]
  tokens = np.tile(np.array(row, np.int32), (rows, 1))
  types = (np.arange(len(row)) > len(row) // 2).astype(np.int32)
  return arrays | {'tokens': tokens, 'segment_ids': np.ones_like(tokens), 'type_ids': np.tile(types, (rows, 1))}


def examples(prepare: Callable[..., Any], arrays: Mapping[str, Any], *, seed: int, draws: int) -> list[Any]:
  """Apply the noise of a run's first steps to a batch.

  Args:
    prepare: of a `types.Task`.
    arrays: from `batch`.
    seed: of the run.
    draws: number of steps.

  Returns:
    A `types.Example` on the host per step.
  """
  import jax

  from plm_jax.noise.keys import noise_root, with_step

  # no optimisation: compiling takes longer than running
  options: Any = {'xla_backend_optimization_level': 0} if jax.default_backend() == 'cpu' else None
  compiled = jax.jit(lambda root, rows, step: prepare(root, with_step(rows, step)), compiler_options=options)
  root = noise_root(jax.random.key(seed))
  return [jax.device_get(compiled(root, arrays, step)) for step in range(draws)]


def lines(example: Any, before: np.ndarray | None, vocab: Any) -> list[Line]:
  """List the readable parts of the first row of an example.

  Args:
    example: a `types.Example` on the host.
    before: int[rows, length], the tokens before the noise; None for a pair.
    vocab: a `types.Vocab`.
  """
  inputs, targets = example.inputs, example.targets
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
  return [*out, *_targets(inputs, targets, vocab), *_masks(inputs)]


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
  """List the attention masks, one line per token."""
  out = []
  for name in ('allowed', 'permutation_mask'):
    if name in inputs and inputs[name].ndim == 3 and inputs[name].shape[-1] <= LARGEST_MASK:
      # XLNet's mask marks hidden keys, UniLM's visible ones
      mask = inputs[name][0].astype(bool)
      out.append(Line(name.replace('_', ' '), [(Word('one line per token, ■ where the mask is set'),)]))
      out += [Line('', [(Word(''.join('■' if cell else '·' for cell in row)),)]) for row in mask]
  return out


def rates(example: Any, before: np.ndarray | None) -> str:
  """Summarise the rates of changed tokens and targets, and mean lengths."""
  inputs, targets = example.inputs, example.targets
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
