"""TensorFlow Datasets builders of the embedded corpus and its tasks, written as ArrayRecord without TensorFlow.

Only `pydocs.prepare` uses them; importing this file imports `tensorflow_datasets`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow_datasets as tfds

from plm_jax.data.corpora import pydocs_tasks
from plm_jax.data.corpora.pydocs_tasks import Row

Text = tfds.features.Text
ClassLabel = tfds.features.ClassLabel

FEATURES: Mapping[str, Mapping[str, object]] = {
  'corpus': {'text': Text(), 'package': Text(), 'name': Text()},
  'package': {'text': Text(), 'label': ClassLabel(names=pydocs_tasks.AREAS)},
  'summary_pair': {'summary': Text(), 'body': Text(), 'label': ClassLabel(names=pydocs_tasks.PAIR_LABELS)},
  'summary_choice': {'context': Text(), 'endings': tfds.features.Sequence(Text()), 'label': ClassLabel(num_classes=4)},
  'summarise': {'source': Text(), 'target': Text()},
  'parameters': {
    'tokens': tfds.features.Sequence(Text()),
    'tags': tfds.features.Sequence(ClassLabel(names=pydocs_tasks.PARAMETER_TAGS)),
    'heads': tfds.features.Sequence(np.int32),
  },
  'describe': {
    'id': Text(),
    'title': Text(),
    'context': Text(),
    'question': Text(),
    'answers': tfds.features.Sequence({'text': Text(), 'answer_start': np.int32}),
  },
}


@dataclasses.dataclass(kw_only=True)
class PydocsConfig(tfds.core.BuilderConfig):
  """Config of one of the sets; `name` ends with the digest of its sources."""

  task: str  # a key of `FEATURES`
  rows: Mapping[str, Sequence[Row]] = dataclasses.field(repr=False)  # the rows of each split


class Pydocs(tfds.core.GeneratorBasedBuilder):
  """English prose of the docstrings of installed packages, and tasks made from it."""

  VERSION = tfds.core.Version('1.0.0')
  url_infos = None  # no downloads; TFDS 4.9.10 would need importlib_resources, which it does not require

  def _info(self) -> tfds.core.DatasetInfo:
    config = self.builder_config
    return tfds.core.DatasetInfo(
      builder=self,
      description=config.description,
      features=tfds.features.FeaturesDict(dict(FEATURES[config.task])),
      # Equal rows may have different bytes: a protocol buffer writes the fields of a row in any order.
      metadata=tfds.core.MetadataDict(digests={split: _digest(rows) for split, rows in config.rows.items()}),
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator[tuple[str, Row]]]:
    return {split: self._generate_examples(rows) for split, rows in self.builder_config.rows.items()}

  def _generate_examples(self, rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    for n, row in enumerate(rows):
      yield f'{n:08d}', row


def _digest(rows: Sequence[Row]) -> str:
  return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
