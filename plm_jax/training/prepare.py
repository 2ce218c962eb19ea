"""Makes what a run reads before there is a TPU: the engine of `python -m plm_jax.prepare`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.data import made
from plm_jax.data.made import Made
from plm_jax.training import feed, from_data
from plm_jax.training.parts import make_parts, make_source, make_vocab


class Prepared(NamedTuple):
  """What is there for a run now.

  Attributes:
    lines: (place in the config, such as 'eval.test.data'; what its rows are made from), in the order of making.
    facts: digests by the names that they have in the `data.json` of a run.
  """

  lines: list[tuple[str, Made]]
  facts: dict[str, str]


def prepare(settings: Mapping[str, Any]) -> Prepared:
  """Makes the token stores and tables of a run in `data.cache`; what is there, whole, is left as it is.

  Safe to call in several processes, and in one that may be killed: what is under way has another name, or a journal.

  Args:
    settings: as `config.resolve` returns them.

  Raises:
    ConfigError: there is no vocabulary, or no text; and as `parts.make_source`.
  """
  settings = from_data.filled(settings)
  vocab = make_vocab(settings)
  parts = make_parts(settings, vocab)
  lines: list[tuple[str, Made]] = []
  facts = {}
  for place, block in config.of_data(settings).items():
    with made.watching() as told:
      source = make_source(block, vocab, seed=settings['seed'], reader=parts, where=place)
      if place == 'data':
        facts = {
          'data_digest': source.digest,
          'vocab_digest': vocab.digest,
          'first_ten_batches': feed.first_batches_digest(source),
        }
    lines += [(place, one) for one in told]
  if parts.second_vocab is not None:
    facts['second_vocab_digest'] = parts.second_vocab.digest
  return Prepared(lines, facts)
