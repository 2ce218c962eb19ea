"""Names and keywords: what is found, what is passed on, and what each mistake says."""

import json

import pytest

from plm_jax.config import build, signatures, values
from plm_jax.config.signatures import Keyword, Missing
from plm_jax.core.errors import ConfigError
from tests import fakes


@pytest.fixture(autouse=True)
def package(monkeypatch, tmp_path):
  return fakes.use(monkeypatch, tmp_path)


def test_names_are_the_files_with_a_make():
  assert signatures.names('data') == ['labelled', 'mixture', 'stream']
  assert signatures.names('adapters') == ['classify', 'wrap']
  assert signatures.names('nowhere') == []


def test_functions_are_those_that_start_with_a_key():
  assert list(signatures.places('noise.where')) == ['fixed_count', 'iid']
  assert signatures.functions('optim.rules') == ['adamw', 'lamb']


def test_a_signature_has_annotations_and_defaults_without_an_import():
  known = signatures.signature('objectives', 'masked')
  assert known['where'] == Keyword("Annotated[Mapping[str, Any], 'noise.where']", {'name': 'fixed_count'})
  assert known['copies'] == Keyword('int', 10)
  assert known['trunk'] == Keyword('Any', Missing.REQUIRED)
  assert signatures.signature('models', 'small')['execution'].default is Missing.COMPUTED


def test_aliases_are_written_out_across_files():
  assert signatures.signature('data', 'stream')['layout'].annotation == "Literal['documents', 'full']"
  assert signatures.keywords('optim.optimiser')['decay'].annotation == 'Sequence[tuple[str, Any]] | float'


def test_tables_papers_and_first_lines_are_read():
  assert signatures.table('models.small', 'CONFIGS') == ['small-base', 'tiny']
  assert signatures.table('models.small', 'NOTHING') == []
  assert signatures.paper('models.small') == {
    'year': 2018,
    'title': 'Nobody, Small',
    'architecture': 'encoder',
    'objective_family': 'denoising',
    'adapters': ('classify',),
  }
  assert signatures.paper('text.pieces') == {}
  assert signatures.first_line('text.pieces') == 'Word pieces.'
  assert signatures.first_line('noise.where.tokens', 'fixed_count') == 'So many tokens.'


def test_make_passes_settings_and_what_is_given():
  settings = json.loads('{"name": "pieces", "path": "here", "extra": ["[X]"]}')
  assert build.make('text', settings) == ('vocab', 'here', ('[X]',))
  settings = {'name': 'small', 'variant': 'tiny', 'overrides': {'dropout': 0.0}}
  assert build.make('models', settings, vocab_size=7, execution=None) == ('model', 7, 'tiny', {'dropout': 0.0})


def test_pick_binds_settings_and_those_of_the_offers_that_the_function_names():
  assert build.pick('noise.where', {'name': 'fixed_count', 'rate': 1})(None, None) == (1.0, None)
  assert build.pick('noise.edit', {'name': 'to_mask'}, mask_id=4, vocab_size=9)(None, None, None) == 4
  assert build.pick('noise.edit', {'name': 'mixed'}, mask_id=4, vocab_size=9)(None, None, None) == (4, 9, 0.8)


@pytest.mark.parametrize(
  ('folder', 'settings', 'given', 'words'),
  [
    ('models', {'name': 'smal'}, {}, ['model.name', "'smal'", "mean 'small'", 'Choices: small']),
    ('models', {}, {}, ['model: needs a name']),
    (
      'adapters',
      {'name': 'classify', 'clases': 3},
      {},
      ['adapter.clases', 'mean adapter.classes', '--print_config=types'],
    ),
    ('text', {'name': 'pieces'}, {}, ['missing key vocab.path (str)']),
    ('adapters', {'name': 'classify', 'classes': '3'}, {}, ['adapter.classes: expected int, got str']),
    ('adapters', {'name': 'classify', 'classes': True}, {}, ['expected int, got bool']),
    ('models', {'name': 'small', 'variant': 'tiny', 'vocab_size': 3}, {'vocab_size': 4}, ['set by the run']),
    ('text', {'name': 'pieces', 'path': ''}, {'host': 0}, ["does not take 'host'"]),
  ],
)
def test_a_mistake_names_the_thing_the_choices_and_the_cure(folder, settings, given, words):
  with pytest.raises(ConfigError) as caught:
    given = given or {'adapters': {'trunk': None, 'vocab': None}}.get(folder, {})
    build.make(folder, settings, **given)
  for word in words:
    assert word in str(caught.value)


def test_a_wrong_noise_function_or_keyword_is_named():
  with pytest.raises(ConfigError, match=r"where\.name: unknown function 'fixed_cont'.*mean 'fixed_count'.*iid"):
    build.pick('noise.where', {'name': 'fixed_cont'})
  with pytest.raises(ConfigError, match=r'where\.ratio.*rate, max_count'):
    build.pick('noise.where', {'name': 'fixed_count', 'ratio': 0.2})
  with pytest.raises(ConfigError, match=r'missing key edit\.mask_id'):
    build.pick('noise.edit', {'name': 'to_mask'})


@pytest.mark.parametrize(
  ('annotation', 'value', 'result'),
  [
    ('int', 3, 3),
    ('float', 3, 3.0),
    ('int | float', 3, 3),
    ('float | None', None, None),
    ('Optional[int]', None, None),
    ('bool', True, True),
    ("Literal['a', 1]", 1, 1),
    ('tuple[int, ...]', (1, 2), [1, 2]),
    ('tuple[str, float]', ['a', 1], ['a', 1.0]),
    ('Sequence[tuple[str, float | None]]', (('x', None), ('y', 1)), [['x', None], ['y', 1.0]]),
    ('Mapping[str, int]', {'a': 1}, {'a': 1}),
    ('collections.abc.Mapping[str, Any]', {'a': [1]}, {'a': [1]}),
    ("'int | None'", 2, 2),
    ('Callable[[Array], Array]', {'name': 'iid'}, {'name': 'iid'}),
    ("Annotated[float, '0 <= x < 1']", 0, 0.0),
    ("Annotated[float, '0 <= x < 1'] | None", None, None),
    ("tuple[Annotated[int, '-1 <= x', 'x < 3'], ...]", [-1, 2], [-1, 2]),
    ("Annotated[Mapping[str, Any], 'noise.where']", {'name': 'iid'}, {'name': 'iid'}),
  ],
)
def test_values_that_fit(annotation, value, result):
  fitted = values.coerce(annotation, value)
  assert fitted == result
  assert type(fitted) is type(result)


@pytest.mark.parametrize(
  ('annotation', 'value'),
  [
    ('int', 3.0),
    ('int', True),
    ('float', '3'),
    ('float', False),
    ('bool', 1),
    ('str', None),
    ("Literal['a', 1]", True),
    ('tuple[int, ...]', 'ab'),
    ('tuple[str, float]', ['a']),
    ('Sequence[tuple[str, float]]', [['x', 'y']]),
    ('Mapping[str, int]', [1]),
    ('Mapping[str, int]', {'a': 'b'}),
    ('Callable[[Array], Array]', 'iid'),
    ('int | None', 'none'),
    ("Annotated[float, '0 <= x < 1']", 1.0),
    ("Annotated[float, '0 <= x < 1']", float('nan')),
    ("Annotated[float, '0 <= x < 1']", '0.5'),
    ("tuple[Annotated[int, '-1 <= x', 'x < 3'], ...]", [-1, 3]),
    ("Annotated[Mapping[str, Any], 'noise.where']", 'iid'),
    ('Vocab | None', 'a vocabulary'),
  ],
)
def test_values_that_do_not_fit(annotation, value):
  with pytest.raises(TypeError, match='expected'):
    values.coerce(annotation, value)


def test_a_type_that_nobody_knows_is_a_mistake_in_the_code():
  with pytest.raises(NameError, match='Where is no type'):
    values.coerce('Where | None', None)


def test_bounds_are_read_and_never_run():
  with pytest.raises(ConfigError, match=r'objective.rate: expected float \(0 <= x < 1\), got float 1.5'):
    values.check_keywords('objective', {'rate': Keyword("Annotated[float, '0 <= x < 1']")}, {'rate': 1.5})
  with pytest.raises(ValueError, match='malformed node'):
    values.coerce("Annotated[float, 'print(x) <= 1']", 0.5)
