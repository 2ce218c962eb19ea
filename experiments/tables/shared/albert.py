"""Rows and columns of ALBERT's tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tables.shared import claims, scales, tasks

COLUMNS = ('SQuAD F1', 'SQuAD 2.0', 'MNLI', 'SST-2', 'RACE', 'average')  # the last columns of its tables


def row(
  scale: str,
  config: str,
  *words: str,
  sharing: str,
  embed_dim: int,
  small: Mapping[str, Any],
  published: Sequence[Any],
  **keys: Any,
) -> dict[str, Any]:
  """Return a row of ALBERT's tables.

  They differ in the parameters that layers share and in the width of embeddings.

  Args:
    scale: of the table.
    config: of the pre-training.
    *words: of that config.
    sharing: what the layers share.
    embed_dim: width of embeddings at the scale of the paper.
    small: sizes where the table is small, beside `SIZES`.
    published: millions of parameters, then the numbers of `ALBERT`.
    **keys: changes of the pre-training, as of `pretraining`.
  """
  own = {} if scale == 'small' else dict(model__overrides__sharing=sharing)
  own |= dict(model__overrides__embed_dim=embed_dim) if scale == 'paper' else {}
  sizes = {**scales.SIZES, 'sharing': sharing, **small}
  made = scales.pretraining(scale, config, *words, small=sizes, **own, **keys, **scales.masks(scale))
  return made | dict(published=claims.by_column(('parameters, millions', *COLUMNS), published))


def columns(scale: str) -> dict[str, dict[str, Any]]:
  """Return the columns of ALBERT's tables of sizes."""
  millions = dict(
    of='parameters', times=1e-6, better='min', note='parameters are those of pre-training, heads included'
  )
  return {'parameters, millions': millions, **tasks.columns(scale, *COLUMNS)}
