"""The heads of classes in Hugging Face's form, as the files of `architectures/` describe them (`table.py`)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from plm_jax.weights.table import Entry, linear


class TaskHead(NamedTuple):
  """The head of one of their classes for a task, and the adapter that computes the same."""

  adapter: str  # the file of `adapters/`
  entries: tuple[Entry, ...]  # its parameters, 'head/...', and those of the trunk that only such a class has
  # of the adapter, which the parameters do not show: the activation between two layers
  settings: Mapping[str, Any] = MappingProxyType({})
  pooler: bool = False  # the class reads the trunk's pooler by its name without a head as well
  unpadded: bool = False  # the class reads the last token that is not padding


def one_layer(adapter: str, theirs: str, *, pooler: bool = False) -> TaskHead:
  """Describe a head of one dense layer with a bias."""
  return TaskHead(adapter, tuple(linear('head', theirs)), pooler=pooler)


def two_layers(adapter: str, dense: str, out: str, *, activation: str) -> TaskHead:
  """Describe a head of two dense layers with an activation between."""
  layers = *linear('head/hidden', dense), *linear('head/out', out)
  return TaskHead(adapter, layers, MappingProxyType({'activation': activation}))


def encoder_tasks() -> dict[str, TaskHead]:
  """Describe BERT's task heads: on the pooler, or on every state."""
  return {
    'ForSequenceClassification': one_layer('classify', 'classifier', pooler=True),
    'ForTokenClassification': one_layer('tag', 'classifier'),
    'ForMultipleChoice': one_layer('choose', 'classifier', pooler=True),
    'ForQuestionAnswering': one_layer('span', 'qa_outputs'),
  }


def score() -> TaskHead:
  """Describe the head of decoders: one matrix on the last token."""
  return TaskHead('classify', (Entry('head/kernel', 'score.weight', 'linear'),), unpadded=True)


def is_task(head: str) -> bool:
  """Check that a head is the suffix of a task class."""
  return head.startswith('For')


def of_task(supported: Sequence[str], tasks: Mapping[str, TaskHead], heads: Sequence[str]) -> list[Entry]:
  """List the entries of a task among `heads`, which `check_heads` checks."""
  check_heads(heads, supported, tasks)
  return [entry for head in heads if head in tasks for entry in tasks[head].entries]


def check_heads(heads: Sequence[str], supported: Sequence[str], tasks: Mapping[str, TaskHead]) -> None:
  """Raise ValueError for a head that the published form lacks."""
  if unsupported := sorted(set(heads) - {*supported, *tasks}):
    raise ValueError(
      f'the published form has no head {", ".join(unsupported)}; choices are '
      f'{", ".join((*supported, *tasks)) or "none"}'
    )
