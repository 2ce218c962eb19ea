"""Annotations of every plug-in file of the package: each name in them is known, each kind in them exists."""

import ast
import dataclasses

import pytest

from plm_jax.config import annotations, blocks, build, signatures, values
from plm_jax.config.annotations import Part
from plm_jax.config.signatures import Missing

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
  for kind in (*OWN, 'optim.optimiser:make', 'core.types:Execution', 'checkpoint.init_from:Entry'):
    yield tuple(kind.split(':'))


def inner(found):
  """The classes and functions whose keywords stand in blocks of these definitions, such as `DenoiserBlock`."""
  for module, name in found:
    for keyword in signatures.keywords(module, name).values():
      for part in annotations.parts(keyword.annotation):
        file, _, definition = part.inner.partition(':')
        if part.form == 'block' and definition and signatures.has(file, definition):
          yield file, definition


DEFINITIONS = list(definitions())
DEFINITIONS = list(dict.fromkeys([*DEFINITIONS, *inner(DEFINITIONS)]))


def written(module, name):
  """The keywords of a definition that a config may hold: not those that the run gives."""
  folder, function = module.partition('.')[0], name != 'make' and f'{module}:{name}' not in blocks.GIVEN
  given = blocks.GIVEN.get(f'{module}:{name}', blocks.GIVEN.get(folder, ()))
  for key, keyword in signatures.keywords(module, name).items():
    bound_by_run = folder in ('noise', 'optim') and function and keyword.default is Missing.REQUIRED
    if key not in given and not bound_by_run:
      yield key, keyword


def test_there_are_definitions_of_every_folder():
  assert {module.partition('.')[0] for module, _ in DEFINITIONS} > {*FOLDERS, 'noise', 'optim', 'config', 'core'}


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


def is_unbounded(node: ast.expr) -> bool:
  """Return whether an annotation allows a number without a bound."""
  match node:
    case ast.Name() | ast.Attribute():
      return annotations.tail(node) in ('int', 'float')
    case ast.Subscript() if annotations.tail(node.value) in ('Annotated', 'Literal', 'Callable'):
      return False
    case ast.Subscript():
      return any(map(is_unbounded, annotations.arguments(node)))
    case ast.BinOp():
      return is_unbounded(node.left) or is_unbounded(node.right)
  return False


@pytest.mark.parametrize(('module', 'name'), DEFINITIONS)
def test_every_number_that_a_config_holds_has_a_bound(module, name):
  free = [key for key, keyword in written(module, name) if is_unbounded(annotations.parse(keyword.annotation))]
  fix = "write Annotated[float, '0 <= x <= 1'] or an alias of keywords.py; 'any' where every number has a meaning"
  assert not free, f'{name} in {signatures.path(module)}: {", ".join(free)}: {fix}'


@pytest.mark.parametrize(('module', 'name'), DEFINITIONS)
def test_every_default_is_one_that_its_annotation_takes(module, name):
  wrong = {
    key: keyword.default
    for key, keyword in written(module, name)
    if not isinstance(keyword.default, Missing) and not values.fits(keyword.annotation, keyword.default)
  }
  assert not wrong, f'{name} in {signatures.path(module)}'


@pytest.mark.parametrize('name', signatures.names('models'))
def test_every_size_is_one_that_its_annotation_takes(name):
  known = signatures.keywords(f'models.{name}', 'Config')
  for variant, sizes in build.import_file(f'models.{name}').CONFIGS.items():
    values.check_keywords(variant, known, dataclasses.asdict(sizes))


@pytest.mark.parametrize(
  ('annotation', 'free'),
  [
    ('int', True),
    ('float | None', True),
    ('Sequence[int]', True),
    ('Mapping[str, float] | None', True),
    ("Annotated[float, '0 <= x'] | int", True),
    ("Annotated[float, '0 <= x'] | None", False),
    ("tuple[Annotated[int, '1 <= x'], ...]", False),
    ("Annotated[float, 'any']", False),
    ('Literal[1, 2] | str', False),
  ],
)
def test_numbers_without_a_bound_are_found(annotation, free):
  assert is_unbounded(annotations.parse(annotation)) == free


@pytest.mark.parametrize(
  ('annotation', 'value', 'found'),
  [
    ('int | None', 3, None),
    ('Mapping[str, int]', {}, Part('mapping', 'int')),
    ('tuple[int, ...] | None', (), Part('sequence', 'int')),
    ('tuple[int, str]', (), Part('sequence', 'Any')),
    ("Annotated[str, 'core.sharding:RULES'] | Sequence[int]", 'data', Part('name', 'core.sharding:RULES')),
    ("Annotated[str, 'core.sharding:RULES'] | Sequence[int]", [], Part('sequence', 'int')),
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
  assert set(blocks.GIVEN) - {'data.corpora.filters:filter_documents'} <= {k for found in kinds.values() for k in found}


@pytest.mark.filterwarnings('error')
def test_a_text_that_is_no_pattern_brings_no_warning():
  assert values.fits("Annotated[str, 'pattern']", '[[a]')
  with pytest.raises(TypeError, match=r"'\(' is no regular expression: missing \)"):
    values.coerce("Sequence[tuple[Annotated[str, 'pattern'], float]]", [['(', 1.0]])


@pytest.mark.parametrize('value', [1e-300, -1e-300, 1e39, pytest.param(10**400, id='integer')])
def test_numbers_that_arrays_cannot_hold_are_refused(value):
  with pytest.raises(TypeError, match='numbers have 32 bits'):
    values.coerce("Annotated[float, 'any']", value)
  assert values.coerce('float', 0) == 0
  assert all(values.coerce('float', size) == size for size in (2.0**-126, 3.4028234e38))


@pytest.mark.parametrize('key', ['log_every', 'eval_every', 'save_every', 'keep', 'max_skipped', 'accumulate'])
def test_whole_numbers_of_a_config_end_where_those_of_arrays_do(key):
  annotation = signatures.keywords('config.schema', 'Run')[key].annotation
  assert values.coerce(annotation, 2**31 - 1) == 2**31 - 1
  with pytest.raises(TypeError, match=r'whole numbers end at 2,147,483,647'):
    values.coerce(annotation, 2**31)
  assert values.coerce(signatures.keywords('config.schema', 'Run')['seed'].annotation, 2**32 - 1) == 2**32 - 1


def test_long_values_are_shortened_in_messages():
  with pytest.raises(TypeError) as refused:
    values.coerce('int', 'a\nb' * 1000)
  assert len(str(refused.value)) < 120 and '\n' not in str(refused.value)
