"""Every number of an objective, and of what it names in `noise`, at the ends of its bounds: rows are prepared all the
same, or the value is refused in words of ours. A vocabulary without text."""

import functools
import itertools
import re
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import build, signatures, values
from plm_jax.core.errors import ConfigError
from plm_jax.noise import keys
from plm_jax.noise.row import Row, Spans
from tests import test_contract, tiny
from tests.objectives import test_hard_rows as hard

ENDS = (0, 1e-37, 1e-9, 1, 100, 50_000, 2**31 - 1)  # those that an annotation takes are tried


class Case(NamedTuple):
  """An objective with one number at an end of its bounds."""

  objective: str
  settings: dict[str, Any]

  def __str__(self) -> str:
    return f'{self.objective} {self.settings}'


def ends(known: Mapping[str, signatures.Keyword]) -> list[dict[str, Any]]:
  """One setting each: a number of every keyword that has bounds, at an end of them."""
  found = []
  for name, keyword in known.items():
    if ' x' in keyword.annotation:
      kind = float if 'float' in keyword.annotation else int
      tried = dict.fromkeys(map(kind, ENDS))  # int(1e-9) is 0
      found += [{name: value} for value in tried if values.fits(keyword.annotation, value)]
  return found


def own_cases(objective: str) -> list[Case]:
  """Numbers of `make`."""
  return [Case(objective, one) for one in ends(signatures.signature('objectives', objective))]


def noise_cases() -> dict[str, list[Case]]:
  """Numbers of every function of `noise`, in an objective that can use it and has nothing else to predict."""
  cases: dict[str, list[Case]] = {}
  plain = {'rearrange': (), 'edit': {'name': 'drop'}, 'target': 'chosen'}
  for name, place in signatures.places('noise.where').items():
    numbers = ends(signatures.keywords(place, name))
    cases[name] = [Case('denoise_seq2seq', {**plain, 'where': {'name': name, **one}}) for one in numbers]
  gaps = {'where': {'name': 'random_gaps'}, 'target': 'text'}  # for what writes insertions alone
  for name, place in signatures.places('noise.edit').items():
    numbers, more = ends(signatures.keywords(place, name)), gaps if name == 'insert' else {}
    cases[name] = [Case('denoise_seq2seq', {'edit': {'name': name, **one}, **more}) for one in numbers]
  for name, place in signatures.places('noise.rearrange').items():
    cases[name] = [
      Case('denoise_seq2seq', {'rearrange': ({'name': name, **one},)}) for one in ends(signatures.keywords(place, name))
    ]
  return {name: found for name, found in cases.items() if found}


def every_target(name: str) -> list[Case]:
  """A function of `noise.where` at its ends, in masked language modelling and with every edit and target."""
  numbers = ends(signatures.keywords(signatures.places('noise.where')[name], name))
  cases = [Case('mlm', {'where': {'name': name, **one}}) for one in numbers]
  for one, target, write in itertools.product(numbers, ('chosen', 'masked', 'text'), ('drop', 'collapse_to_mask')):
    settings = {'where': {'name': name, **one}, 'edit': {'name': write}, 'target': target, 'rearrange': ()}
    cases.append(Case('denoise_seq2seq', settings))
  return cases


@functools.cache
def trunk_of(objective: str):
  model = test_contract.first_pair(f'objectives/{objective}').model
  return test_contract.make_trunk(model, max_length=4096)


def make_task(case: Case, vocab=None):
  settings = {'name': case.objective, **test_contract.SETTINGS.get(case.objective, {}), **case.settings}
  offered, trunk = {'second_vocab': vocab or VOCAB}, trunk_of(case.objective)
  return build.make('objectives', settings, offered=offered, trunk=trunk, vocab=vocab or VOCAB)


class Words(tiny.FakeVocab):
  """The fake vocabulary with names: a full stop among the words."""

  def token(self, token_id: int) -> str:
    return '.' if token_id % 9 == 0 else f'w{token_id}'

  def id(self, token: str) -> int:
    return int(token[1:])


VOCAB = Words()


def prepare(case: Case, vocab=None):
  """The shapes of what the objective makes of hard rows."""
  task = make_task(case, vocab)
  batch = hard.given(case.objective, hard.make_batch())
  return jax.eval_shape(lambda batch: task.prepare(keys.noise_root(jax.random.key(1)), keys.with_step(batch, 3)), batch)


def refused_by_us(error: Exception) -> bool:
  """Whether it is an error for the user, raised in the package and not below it."""
  last = traceback.extract_tb(error.__traceback__)[-1]
  return isinstance(error, ValueError | ConfigError) and '/plm_jax/' in last.filename


def check(cases: list[Case]) -> None:
  for case in cases:
    try:
      example = prepare(case)
    except Exception as error:  # noqa: BLE001 any kind but ours is a finding
      assert refused_by_us(error), case
      continue
    for path, leaf in jax.tree_util.tree_leaves_with_path(example):
      assert leaf.size, (str(case), jax.tree_util.keystr(path))


@pytest.mark.parametrize('objective', [name for name in hard.OBJECTIVES if own_cases(name)])
def test_every_number_of_an_objective_may_be_at_the_end_of_its_bounds(objective):
  check(own_cases(objective))


@pytest.mark.parametrize('name', noise_cases())
def test_every_number_of_a_noise_function_may_be_at_the_end_of_its_bounds(name):
  check(noise_cases()[name])


@pytest.mark.slow
@pytest.mark.parametrize('name', signatures.places('noise.where'))
def test_every_number_goes_with_every_target(name):
  check(every_target(name))


SPECIALS = Words(size=7)


@pytest.mark.parametrize('objective', hard.OBJECTIVES)
def test_a_vocabulary_of_special_tokens_is_refused_or_prepared(objective):
  try:
    prepare(Case(objective, {}), SPECIALS)
  except ValueError as error:
    assert re.search(r'\b7\b.* special', str(error)) and refused_by_us(error)


WORD_VECTORS = ('skipgram', 'hierarchical_softmax', 'fasttext', 'ranking', 'glove')


@pytest.mark.parametrize('objective', WORD_VECTORS)
def test_word_vectors_of_one_word_are_refused(objective):
  """A word that is told from itself has a loss that never moves."""
  said = f"objective '{objective}'.*\\b8 .*'w7'.* special"
  with pytest.raises(ValueError, match=said) as caught:
    prepare(Case(objective, {}), Words(size=8))
  assert refused_by_us(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize('objective', WORD_VECTORS[:3])
def test_words_that_are_drawn_by_frequency_were_seen(objective):
  with pytest.raises(ValueError, match=r"\b40 .*'w10'"):
    prepare(Case(objective, {}), Words(size=40, counts=np.arange(40) == 10))


@pytest.mark.parametrize('name', ['bert_80_10_10', 'to_random', 'insert'])
def test_random_ordinary_tokens_need_one(name):
  write = build.pick(
    'noise.edit', {'name': name, 'random_ids': 'ordinary'}, mask_id=4, vocab_size=7, special_ids=range(7)
  )
  row = Row(*(jnp.ones(4, kind) for kind in (int, bool, int)))
  with pytest.raises(ValueError, match=r"\b7 .*'all'"):
    write(jax.random.key(0), row, Spans(row.ids, row.ids))
