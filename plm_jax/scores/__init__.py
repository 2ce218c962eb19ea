"""Scores that need all predictions at once: one file per score, named in configs as `eval.NAME.scores=('matthews',)`.

A file has

    METRICS                        names of all metrics that `score` returns, known before anything runs: `best` is
                                   checked against them
    READS                          keys of a prediction that it reads
    RECORDS                        keys of a record that it reads
    NEEDS (if any)                 packages imported inside its functions, by their pip names
    score(predictions, records)    -> {metric: number}; raises ValueError for input that it cannot score

and may have

    check(records)                 raises ValueError for rows that it cannot score, before anything is trained; records
                                   may lack 'group' and what tokenising adds
    INSTEAD = (reads, records)     keys of other predictions that it also scores, and of their records
    BY_ROW = metrics               those of METRICS that are means over separately scored rows or groups
    UNLABELLED = reads             keys of predictions with which it also scores rows of the data that have no label or
                                   no right answer
    TOKENIZE = names               tokens that `eval.NAME.tokenize` may name, the default first; then the file also has
                                   `chosen(records)`, and `score` takes `tokenize`
    submission(predictions, records)    -> the text of a file in the format in which a benchmark takes predictions

A file with only `submission` is a format of `evaluate --format` and no score; it needs one of its `READS`.

`predictions` are mappings, one for each row of a source in the order of `Source.once`, without padding rows: the
keys of `Task.predict` -> numpy values without the batch axis, and 'row_id'. `records` are the mappings of
`Source.record` for the same rows in the same order, with 'group' if the source has one (`Source.group`). Every host
has all of both. Keys of records that scores share:

    row       the row as the data stores it
    label     its class (int) or value (float); None without one
    classes   list of its classes, where it may have several; None if they are unknown
    words     list of its words
    labels    list of the class of each word; -1 for a word without one
    heads     list of the index of the head of each word, its own for a root; -1 for a word without one
    places    list of the indices of the words that the batch labels, in order: word `places[k]` is the k-th label there
    references  list of the right texts, the one that is trained first; None without one
    options   the texts to choose from, () if any text may be written
    draw      index of the sample of few-shot demonstrations of the row, from 0
    names     the names of the classes, () if the data has none
    label_names  the names of the classes in benchmarks, if `names` are the words of a prompt; only in some records
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.core.errors import ConfigError, is_installed

Row = Mapping[str, Any]


class Group(NamedTuple):
  """Rows of one group in order: their predictions, and their records."""

  predictions: list[Row]
  records: list[Row]


def grouped(predictions: Sequence[Row], records: Sequence[Row]) -> list[Group]:
  """Group rows by 'group' in order of first rows; others are alone."""
  # groups of records a b a -   ->   [(p0, p2), (r0, r2)], [(p1,), (r1,)], [(p3,), (r3,)]
  groups: dict[Any, Group] = {}
  for index, (prediction, record) in enumerate(zip(predictions, records, strict=True)):
    key = ('group', record['group']) if 'group' in record else ('row', index)
    group = groups.setdefault(key, Group([], []))
    group.predictions.append(prediction)
    group.records.append(record)
  return list(groups.values())


def check_installed(name: str, packages: Iterable[str]) -> None:
  """Raise ConfigError if a package of score `name` is not installed."""
  for package in packages:
    if not is_installed(package):
      raise ConfigError(
        f'score {name!r} needs the package {package}: pip install {package} (or, for all scores, '
        'pip install -r requirements/scores.txt), or remove the score from eval.NAME.scores'
      )
