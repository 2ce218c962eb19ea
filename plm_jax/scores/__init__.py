"""Scores that need all predictions at once: a file per score, named in configs as `eval.NAME.scores=('matthews',)`.

A file has

    METRICS                        names of all metrics that `score` returns, known before anything runs: `best` is
                                   checked against them
    READS                          keys of a prediction that it reads
    RECORDS                        keys of a record that it reads
    NEEDS (where needed)           packages that it imports within its functions, as pip knows them
    score(predictions, records)    -> {metric: number}; raises a ValueError where it cannot score what it is given

and may have

    INSTEAD = (reads, records)     keys of other predictions that it scores as well, and of their records
    BY_ROW = metrics               those of METRICS that are means of what its rows score alone, or its groups
    UNLABELLED = reads             keys of predictions by which it scores rows that have no label or no right answer as
                                   well, of what the data hold
    submission(predictions, records)    -> the text of a file in the form in which a benchmark takes predictions

A file with `submission` alone is a format of `evaluate --format` and no score; one of its `READS` is enough for it.

`predictions` are mappings, one for each row of a source in the order of `Source.once`, without padding rows: the
keys of `Task.predict` -> numpy values without the batch axis, and 'row_id'. `records` are the mappings of
`Source.record` for the same rows in the same order, with 'group' where the source has one (`Source.group`). Every host
has all of both. Keys of records that scores share:

    row       the row as the data holds it
    label     its class (int) or value (float); None where it has none
    words     list of its words
    labels    list of the class of each word; -1 for a word without one
    heads     list of the number of the head of each word, its own for a root; -1 for a word without one
    places    list of the numbers of the words that the batch labels, in order: word `places[k]` is the k-th label there
    references  list of the texts of which any is right, the one that is trained first; None where it has none
    options   the texts to choose from, () where any text may be written
    draw      which draw of few-shot demonstrations the row has, from 0
    names     the names of the classes, () where the data has none
    label_names  what benchmarks call the classes where `names` are the words of a prompt; in some records alone
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from plm_jax.core.errors import ConfigError

Row = Mapping[str, Any]


class Group(NamedTuple):
  """Rows that belong together, in order: their predictions, and their records."""

  predictions: list[Row]
  records: list[Row]


def grouped(predictions: Sequence[Row], records: Sequence[Row]) -> list[Group]:
  """Rows joined by the 'group' of their records, groups in the order of their first rows; rows without one alone."""
  # groups of records a b a -   ->   [(p0, p2), (r0, r2)], [(p1,), (r1,)], [(p3,), (r3,)]
  found: dict[Any, Group] = {}
  for number, (prediction, record) in enumerate(zip(predictions, records, strict=True)):
    key = ('group', record['group']) if 'group' in record else ('row', number)
    group = found.setdefault(key, Group([], []))
    group.predictions.append(prediction)
    group.records.append(record)
  return list(found.values())


def check_installed(name: str, packages: Iterable[str]) -> None:
  """Raises ConfigError where a package that a score or a format imports is not installed.

  Args:
    name: of the score.
    packages: its `NEEDS`.
  """
  for package in packages:
    try:
      metadata.distribution(package)
    except metadata.PackageNotFoundError:
      raise ConfigError(
        f'score {name!r} needs the package {package}, which is not installed: pip install {package}, or all of its '
        'kind with pip install -r requirements/scores.txt; or leave the score out (eval.NAME.scores)'
      ) from None
