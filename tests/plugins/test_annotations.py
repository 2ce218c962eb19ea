"""Annotations of every plug-in file of the package: each name in them is known, each kind in them exists."""

import pytest

from plm_jax.config import blocks
from plm_jax.plugins import annotations, signatures
from plm_jax.plugins.annotations import Part

FOLDERS = ('models', 'objectives', 'adapters', 'data', 'text')
OWN = ('config.schema:Run', 'config.schema:Sharding', 'config.schema:Evaluation')


def definitions():
  """(file, function or class) of everything whose keywords a config may hold."""
  for folder in FOLDERS:
    for name in signatures.names(folder):
      yield f'{folder}.{name}', 'make'
      if signatures.has(f'{folder}.{name}', 'Config'):
        yield f'{folder}.{name}', 'Config'
  for kind in ('noise.where', 'noise.edit', 'noise.rearrange', 'optim.rules', 'optim.schedules'):
    yield from ((module, name) for name, module in signatures.places(kind).items())
  for kind in (*OWN, 'optim.optimiser:make', 'types:Execution', 'checkpoint.init_from:Entry'):
    yield tuple(kind.split(':'))


DEFINITIONS = list(definitions())


def test_there_are_definitions_of_every_folder():
  assert {module.partition('.')[0] for module, _ in DEFINITIONS} > {*FOLDERS, 'noise', 'optim', 'config', 'types'}


@pytest.mark.parametrize(('module', 'name'), DEFINITIONS)
def test_every_name_in_an_annotation_is_known(module, name):
  strange = {key: annotations.unknown(k.annotation) for key, k in signatures.keywords(module, name).items()}
  assert not {key: names for key, names in strange.items() if names}, f'{name} in {signatures.path(module)}'


@pytest.mark.parametrize(('module', 'name'), DEFINITIONS)
def test_every_kind_in_an_annotation_exists(module, name):
  for key, keyword in signatures.keywords(module, name).items():
    for part in annotations.parts(keyword.annotation):
      if part.form not in ('block', 'name'):
        continue
      file, _, definition = part.inner.partition(':')
      found = signatures.has(file, definition) or signatures.table(file, definition) if definition else None
      assert found or signatures.places(part.inner), f'{key} of {name} in {signatures.path(module)}: {part.inner}'


@pytest.mark.parametrize(
  ('annotation', 'value', 'found'),
  [
    ('int | None', 3, None),
    ('Mapping[str, int]', {}, Part('mapping', 'int')),
    ('tuple[int, ...] | None', (), Part('sequence', 'int')),
    ('tuple[int, str]', (), Part('sequence', 'Any')),
    ("Annotated[str, 'sharding:RULES'] | Sequence[int]", 'data', Part('name', 'sharding:RULES')),
    ("Annotated[str, 'sharding:RULES'] | Sequence[int]", [], Part('sequence', 'int')),
    ("Annotated[Mapping[str, Any], 'noise.where'] | None", {}, Part('block', 'noise.where')),
    ("Annotated[float, '0 <= x']", 0.5, None),
  ],
)
def test_parts(annotation, value, found):
  assert annotations.part(annotation, value) == found


def test_a_kind_is_given_to_what_has_none():
  assert annotations.with_kind('tuple[Mapping[str, Any], ...] | None', 'noise.edit') == (
    "tuple[Annotated[Mapping[str, Any], 'noise.edit'], ...] | None"
  )
  assert annotations.with_kind("Annotated[Mapping[str, Any], 'models']", 'noise.edit') == (
    "Annotated[Mapping[str, Any], 'models']"
  )


def test_messages_are_for_readers():
  assert annotations.readable("Annotated[float, '0 <= x <= 1'] | None") == 'float (0 <= x <= 1) | None'
  assert annotations.readable("tuple[Annotated[Mapping[str, Any], 'noise.edit'], ...]") == (
    'tuple[block of noise.edit, ...]'
  )


def test_the_whole_config_is_of_known_kinds():
  run = signatures.keywords('config.schema', 'Run')
  kinds = {key: [p.inner for p in annotations.parts(k.annotation) if p.form == 'block'] for key, k in run.items()}
  assert kinds['model'] == ['models'] and kinds['eval'] == ['config.schema:Evaluation']
  assert set(blocks.GIVEN) <= {kind for found in kinds.values() for kind in found}
