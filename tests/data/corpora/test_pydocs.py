"""The embedded corpus: reading and cleaning docstrings, a fixed build, tasks with answers that can be checked."""

import ast
import hashlib
import itertools
import json
import pathlib
import re
import subprocess
import sys
from collections import Counter

import pytest

from plm_jax.commands import pydocs as command
from plm_jax.data import made
from plm_jax.data.corpora import docstrings, filters, markup, pydocs, pydocs_tasks, sources
from plm_jax.data.corpora.docstrings import Document, Package

ROOT = pathlib.Path(pydocs.__file__).parents[3]

# Small enough to build in seconds, large enough that every task has rows in every split.
TINY = (
  Package('python', ('argparse.py', 'asyncio', 'decimal.py', '_pydecimal.py', 'email', 'logging', 'tkinter')),
  Package('numpy', ('numpy/linalg', 'numpy/fft', 'numpy/ma', 'numpy/polynomial', 'numpy/lib')),
)
WHOLE = pydocs.PACKAGES
SMALL = (Package('python', ('json', 'statistics.py', 'textwrap.py')),)


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  """Build a cache with the sets of `TINY`, which replace the whole corpus in this module."""
  cache = str(tmp_path_factory.mktemp('cache'))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(pydocs, 'PACKAGES', TINY)
    pydocs.prepare(cache=cache, quiet=True)
    yield cache


def rows(built, task, split):
  return list(sources.open_source(f'pydocs/{task}' if task else 'pydocs', split=split, cache=built))


# From a docstring to prose.


def test_numpydoc():
  found = markup.read("""
    polyval(c, x)

    Evaluate a polynomial at points x, where the
    coefficients are given by :class:`~numpy.ndarray` ``c`` [1]_.

    Parameters
    ----------
    c : array_like, shape (n,)
        Coefficients, *lowest* degree
        first.
    x, y : float or None
        Points.  See `numpy.sum <https://numpy.org>`_.
    out
        Where the result goes.
    %(extra)s

    Returns
    -------
    ndarray
        The values.

    See Also
    --------
    polyfit : Fits.

    Notes
    -----
    .. versionadded:: 1.0
       Long ago.

    .. note:: Slow
       for large `c`.

    It uses the scheme of Horner::

        for a in c:
            s = s * x + a

    which is stable.

    Examples
    --------
    The value at one:

    >>> polyval([1, 2], 1)
    3

    References
    ----------
    .. [1] Somebody.
    """)
  assert found.summary == 'Evaluate a polynomial at points x, where the coefficients are given by ndarray c.'
  assert found.paragraphs == (
    found.summary,
    'Parameters:\n'
    'c (array_like, shape (n,)): Coefficients, lowest degree first.\n'
    'x, y (float or None): Points. See numpy.sum.\n'
    'out: Where the result goes.',
    'Returns:\nndarray: The values.',
    'Slow for large c.',
    'It uses the scheme of Horner.',
    'which is stable.',
    'The value at one.',
  )
  assert found.parameters == (
    ('c', 'array_like, shape (n,)', 'Coefficients, lowest degree first.'),
    ('x, y', 'float or None', 'Points. See numpy.sum.'),
    ('out', '', 'Where the result goes.'),
  )


def test_google():
  found = markup.read("""Adds one to a number.

  Args:
    x: The number, which may be
      negative.
    *rest (int, optional): Others. Default: 0.

  Returns:
    The number after it.

  Raises:
    ValueError: If the number is too large.
  """)
  assert found.paragraphs == (
    'Adds one to a number.',
    'Args:\nx: The number, which may be negative.\nrest (int, optional): Others. Default: 0.',
    'Returns: The number after it.',
    'Raises:\nValueError: If the number is too large.',
  )
  assert found.parameters[1] == ('rest', 'int, optional', 'Others. Default: 0.')


def test_lists_definitions_and_fields():
  found = markup.read("""
  Modes of the file are as follows:

  - read, which is the one that is
    taken by default
  - write

  fast
      The quick way to do it.
  slow
      The other way, which
      takes longer.

  :param str mode: one of those in the list
  :type mode: str
  :returns: the file
  """)
  assert found.paragraphs == (
    'Modes of the file are as follows:',
    '- read, which is the one that is taken by default',
    'fast: The quick way to do it.\nslow: The other way, which takes longer.',
    'mode: one of those in the list\nthe file',
  )


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('see :func:`~jax.numpy.sum` and :meth:`run`', 'see sum and run'),
    ('the `link <https://a.b>`__ to it', 'the link to it'),
    ('a [link](https://a.b/c) in Markdown', 'a link in Markdown'),
    ('**bold** and *emphasis*, but *args and **kwargs stay', 'bold and emphasis, but *args and **kwargs stay'),
    (r'the angle :math:`\alpha` of \*args, \*\*kwargs', 'the angle alpha of *args, **kwargs'),
    ('a parameter lambda_ of ``__init__``', 'a parameter lambda_ of __init__'),
    ('as shown [1]_, [2]_ before', 'as shown, before'),
    ('<Tip>\n\nhere  too', 'here too'),
  ],
)
def test_inline_markup(text, expected):
  assert markup.clean(text) == expected


@pytest.mark.parametrize(
  ('line', 'expected'),
  [
    ('Return the sum of it.', True),
    ('Elementwise cube root.', True),
    ('x = the_sum(of, it)', False),
    ('from numpy import sum', False),
    ('+1.0 -2.0 the 3.0 4.0', False),
    ('IN NO EVENT SHALL THE AUTHOR BE LIABLE', False),
    ('', False),
  ],
)
def test_prose_is_told_from_code(line, expected):
  assert markup.is_prose(line) is expected


def test_docstrings_are_found_wherever_they_stand():
  source = '''
"""Module."""
if True:
  class A:
    """Class."""
    async def f(self):
      """Method."""
      def inner(): "Inner."
add_newdoc('numpy', 'ndarray', """Array.""")
add_newdoc('numpy', 'ndarray', ('T', """Transposed."""))
add_newdoc('numpy', 'ndarray', [('a', 'First.'), ('b', 'Second.')])
add_newdoc('gamma', 'Function.')
add_newdoc(name, built_at_run_time)
'''
  assert list(docstrings.docstrings(ast.parse(source), 'm')) == [
    ('m', 'Module.'),
    ('m.A', 'Class.'),
    ('m.A.f', 'Method.'),
    ('m.A.f.inner', 'Inner.'),
    ('numpy.ndarray', 'Array.'),
    ('numpy.ndarray.T', 'Transposed.'),
    ('numpy.ndarray.a', 'First.'),
    ('numpy.ndarray.b', 'Second.'),
    ('m.gamma', 'Function.'),
  ]


# Which files are read.


def install(folder, name='tinydocs', version='1.0', recorded=('tinydocs/a.py', 'tinydocs/b.py')):
  """Install a distribution as pip does.

  Files that are not recorded belong to another package.
  """
  for path in ('tinydocs/a.py', 'tinydocs/b.py', 'tinydocs/tests/c.py', 'tinydocs/other.py'):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(f'"""The file {path} is a module that is only read and never run."""\nraise SystemExit')
  info = folder / f'{name}-{version}.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n')
  (info / 'RECORD').write_text(''.join(f'{path},,\n' for path in (*recorded, 'tinydocs/tests/c.py')))
  return info


def test_only_the_recorded_files_of_a_package_are_read(tmp_path, monkeypatch, caplog):
  install(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  package = Package('tinydocs', ('tinydocs',))
  for processes in (1, 2):
    found = docstrings.extract([package], processes=processes)
    assert [document.name for document in found] == ['tinydocs.a', 'tinydocs.b']
    assert not caplog.records, 'no other interpreter was started'
  assert found[0].text == 'The file tinydocs/a.py is a module that is only read and never run.'


def test_installing_another_package_changes_nothing(tmp_path, monkeypatch):
  before = pydocs.key(SMALL), docstrings.extract(SMALL)
  install(tmp_path, name='another')
  (tmp_path / 'json.py').write_text('"""A module that hides one of the standard library from those who import it."""')
  monkeypatch.syspath_prepend(tmp_path)
  assert (pydocs.key(SMALL), docstrings.extract(SMALL)) == before


def test_an_upgrade_makes_another_corpus(tmp_path, monkeypatch):
  package = Package('tinydocs', ('tinydocs',))
  monkeypatch.syspath_prepend(tmp_path)
  info = install(tmp_path)
  first = pydocs.key([package])
  assert pydocs.key([package]) == first
  (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: tinydocs\nVersion: 1.1\n')
  assert pydocs.key([package]) != first


def test_editing_the_code_makes_no_other_corpus_but_other_rules_do(monkeypatch):
  first = pydocs.key(SMALL)
  monkeypatch.setattr(filters, 'alphanumeric', str.lower)
  assert pydocs.key(SMALL) == first
  monkeypatch.setattr(pydocs, 'RULES', pydocs.RULES + 1)
  assert pydocs.key(SMALL) != first


# Digest of the rows that each number of `pydocs.RULES` makes of `written`. Where the test fails, rows have changed:
# raise the number and add its digest. Never change a digest.
ROWS_OF_RULES = {1: '0a6376fa18d48603', 2: 'bef4e46f6bf97475'}

ACTIONS = ('sorts', 'counts', 'joins', 'reads', 'writes', 'splits', 'moves', 'scales', 'checks', 'stores')
THINGS = ('array', 'string', 'table', 'matrix', 'stream', 'window', 'folder', 'record', 'number', 'sample')


def written(number: int) -> str:
  """Write a docstring in one of the conventions, with code, lists and markup."""
  action, thing = ACTIONS[number % 10], THINGS[number // 10 % 10]
  summary = f'This function {action} the {thing} of kind {number} and returns the {thing} that it {action}.'
  body = (
    f'The {thing} is one that the caller of this function has made before, and it {action} every part of the {thing} '
    f'in the order in which the parts are found. Where the {thing} of kind {number} is empty, an error is raised.'
  )
  explained = f'Says how the {thing} is read when it {action} the parts of number {number}'
  if number % 3 == 0:
    entries = f'x{number} : {thing}\n    {explained}.\ny{number} : int, optional\n    The *largest* size of it.'
    return f'{summary}\n\n{body}\n\nParameters\n----------\n{entries}\n\n>>> f({number})\n1\n'
  if number % 3 == 1:
    return f'{summary}\n\n{body}\n\nArgs:\n  x{number} ({thing}): {explained}.\n  y (int): How ``many`` there are.\n'
  return f'{summary}\n\n{body}\n\n- the first of these\n- the second::\n\n    code = 1\n\n:param x: {explained}\n'


def test_rows_that_change_raise_the_number_of_the_rules(tmp_path):
  jobs = []
  for package in ('python', 'numpy'):
    path = tmp_path / f'{package}.py'
    functions = range(0, 400, 2) if package == 'python' else range(1, 400, 2)
    path.write_text(''.join(f'def f{number}():\n  {written(number)!r}\n' for number in functions))
    jobs.append((package, f'{package}/m.py', str(path)))
  splits, _ = pydocs.splits_of(docstrings._read(jobs))
  rows = {name: pydocs_tasks.make(task, splits) for name, task in pydocs_tasks.TASKS.items()}
  assert all(len(rows[name]['train']) > 5 for name in rows)
  found = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
  assert found == ROWS_OF_RULES.get(pydocs.RULES), f'rows have changed: raise pydocs.RULES, and add its digest {found}'


def test_a_package_that_is_missing_is_named(tmp_path, capsys, monkeypatch):
  missing = Package('no-such-package', ('no_such_package',))
  with pytest.raises(ModuleNotFoundError, match=r'no-such-package .*pip install no-such-package'):
    pydocs.prepare(cache=str(tmp_path), packages=(*SMALL, missing))
  with pytest.raises(ModuleNotFoundError, match=r"'jason'"):
    docstrings.python_files(Package('python', ('json', 'jason')))
  monkeypatch.setattr(pydocs, 'PACKAGES', (missing,))
  assert command.main(['--cache', str(tmp_path)]) == 2
  assert 'no-such-package' in capsys.readouterr().err


def test_the_standard_library_without_tests_and_site_packages():
  paths = [path for path, _ in docstrings.python_files(Package('python', ('.',)))]
  assert {'json/__init__.py', 'textwrap.py', 'unittest/case.py'} <= set(paths)
  assert not [path for path in paths if re.search(r'(^|/)(tests?|idlelib|lib2to3|(site|dist)-packages)/', path)]
  assert paths == sorted(paths)


# The build.


def test_a_second_build_has_the_same_rows_and_digests(tmp_path):
  one, two = (pydocs.prepare(cache=str(tmp_path / name), packages=SMALL, quiet=True) for name in 'ab')
  assert one.keys() == two.keys() >= {'corpus', 'summarise'}
  for name, folder in one.items():
    first, second = sources.open_source(str(folder)), sources.open_source(str(two[name]))
    assert list(first) == list(second)
    assert first.digest == second.digest


def test_a_build_goes_on_after_a_kill_and_is_done_once(tmp_path):
  key = pydocs.key(SMALL)
  left = tmp_path / 'tfds' / 'pydocs' / f'corpus-{key}' / '1.0.0.incompleteABC'
  left.mkdir(parents=True)
  (left / 'pydocs-train.array_record-00000-of-00001').write_bytes(b'half')
  code = (
    'from plm_jax.data.corpora import pydocs\nfrom plm_jax.data.corpora.docstrings import Package\n'
    "packages = (Package('python', ('json', 'statistics.py', 'textwrap.py')),)\n"
    f'print(pydocs.prepare(cache={str(tmp_path)!r}, packages=packages)["corpus"])\n'
  )
  started = [
    subprocess.Popen([sys.executable, '-c', code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(2)
  ]
  said = [process.communicate(timeout=120) for process in started]
  assert [process.returncode for process in started] == [0, 0], said
  assert said[0][0] == said[1][0]
  assert sum('Writing pydocs' in errors for _, errors in said) == 1
  assert not left.exists()
  assert len(sources.open_source(said[0][0].strip())) > 10
  assert 'WARNING' not in said[0][1] + said[1][1]


def test_a_damaged_build_is_made_again_with_a_line_in_the_log(tmp_path, caplog):
  def prepare():
    caplog.clear()
    return pydocs.prepare(cache=str(tmp_path), packages=SMALL, quiet=True)

  folders = prepare()
  assert prepare() == folders and not caplog.text
  expected = list(sources.open_source(str(folders['summarise'])))
  summary = next((tmp_path / 'tfds' / 'pydocs').glob('*.json'))
  before = json.loads(summary.read_text())
  shard = next(folders['summarise'].glob('*train*'))
  for file, damage in (
    (summary, lambda data: data[:-9]),
    (summary, lambda data: data.replace(b'"rows"', b'"rowz"')),
    (summary, lambda data: data.replace(b'"summarise"', b'"summarize"')),
    (summary, lambda data: b'[' * 100_000),
    (shard, lambda data: data[:99] + b'damaged' + data[106:]),
    (folders['summarise'] / 'features.json', lambda data: data[:-9]),
    (folders['summarise'] / 'dataset_info.json', lambda data: b''),
  ):
    file.write_bytes(damage(file.read_bytes()))
    assert prepare() == folders
    assert file.name in caplog.text and caplog.text.count('building the corpus again') == 1
    assert list(sources.open_source(str(folders['summarise']))) == expected
  old = {name: value for name, value in before.items() if not name.startswith('sha256')}
  summary.write_text(json.dumps(old))  # as earlier versions wrote it
  assert prepare() == folders and not caplog.text


def test_only_the_sets_that_are_read_are_built(tmp_path, caplog):
  def prepare(*sets):
    return pydocs.prepare(cache=str(tmp_path), packages=SMALL, sets=sets, quiet=True)

  whole = pydocs.prepare(cache=str(tmp_path / 'whole'), packages=SMALL, quiet=True)
  first = prepare('summarise')
  assert first.keys() == {'summarise'}
  shard = next(first['summarise'].glob('*train*'))
  shard.write_bytes(shard.read_bytes()[:-9])
  before = shard.stat().st_mtime_ns
  with made.watching(makes=False), pytest.raises(made.Unmade):
    prepare('corpus')
  folders = prepare('corpus')
  assert folders.keys() == {'corpus', 'summarise'}
  assert shard.stat().st_mtime_ns == before  # its damage is found when it is read, not hidden by the other build
  caplog.clear()
  assert prepare() == {name: tmp_path / path.relative_to(tmp_path / 'whole') for name, path in whole.items()}
  assert caplog.text.count('damaged') == 1
  for name, path in prepare().items():
    assert list(sources.open_source(str(path))) == list(sources.open_source(str(whole[name])))


def test_splits_are_nine_tenths_and_the_rest_halved():
  counts = Counter(pydocs.split_of(f'Return the number {n} of the series.') for n in range(20_000))
  assert counts['train'] == pytest.approx(18_000, rel=0.02)
  assert counts['validation'] == pytest.approx(1_000, rel=0.1)
  assert pydocs.split_of('Return IT.\n\nOne body.') == pydocs.split_of('return it\n\nAnother body.')
  assert {pydocs.split_of(f'Args:\nx: {n}') for n in range(100)} == set(pydocs.SPLITS)


def test_the_corpus(built):
  known = pydocs.account(cache=built)
  found = {split: rows(built, '', split) for split in pydocs.SPLITS}
  assert {split: len(found[split]) for split in pydocs.SPLITS} == known['rows']['corpus']
  texts = [row['text'] for split in pydocs.SPLITS for row in found[split]]
  assert sum(map(len, texts)) == sum(package['chars'] for package in known['packages']) > 500_000
  assert len(texts) == len(set(map(filters.alphanumeric, texts))) == known['filter']['kept']
  assert known['filter']['read'] > known['filter']['kept']
  assert not [text for text in texts if '>>>' in text or '\n---' in text or '.. ' in text[:3] or len(text) < 80]
  assert {row['package'] for row in found['train']} == {'python', 'numpy'}


def test_no_row_of_a_task_is_about_a_document_that_the_corpus_trains_on(built):
  trained = [row['text'] for row in rows(built, '', 'train')]
  summaries = {text.split('\n\n')[0] for text in trained}
  masked = {pydocs_tasks.mask(text)[:100] for text in trained}
  for split in ('validation', 'test'):
    assert not [row for row in rows(built, 'summarise', split) if row['target'] in summaries]
    assert not [row for row in rows(built, 'summary_pair', split) if row['summary'] in summaries]
    assert not [row for row in rows(built, 'summary_choice', split) if summaries & set(row['endings'])]
    assert not [row for row in rows(built, 'package', split) if row['text'][:100] in masked]
    assert not {row['id'] for row in rows(built, 'describe', split)} & {
      row['id'] for row in rows(built, 'describe', 'train')
    }


def test_no_two_splits_of_a_task_are_about_the_same_thing(built):
  for name, task in pydocs_tasks.TASKS.items():
    about = [
      {str(row[task.about]) for row in rows(built, name.replace('corpus', ''), split)} for split in pydocs.SPLITS
    ]
    assert not about[0] & about[1] and not about[0] & about[2] and not about[1] & about[2]


# The tasks.


def test_every_task_has_rows_in_every_split(built):
  known = pydocs.account(cache=built)['rows']
  assert tuple(known) == pydocs.SETS
  assert all(known[task][split] > 5 for task in pydocs.SETS for split in pydocs.SPLITS)


def test_package_hides_the_names_and_is_balanced(built):
  records = sources.open_source('pydocs/package', cache=built)
  assert records.names == pydocs_tasks.AREAS
  counts = Counter(records.names[row['label']] for row in records)
  assert set(counts) == {'python', 'numpy'}
  assert len(set(counts.values())) == 1
  assert not [row for row in records if re.search(r'numpy|\bnp\b|python|jax|scipy', row['text'], re.IGNORECASE)]


def test_pairs_and_choices_agree_with_the_summaries(built):
  for split in pydocs.SPLITS:
    own = {row['source']: row['target'] for row in rows(built, 'summarise', split)}
    pairs = rows(built, 'summary_pair', split)
    assert all((own[row['body']] == row['summary']) == (row['label'] == 1) for row in pairs)
    for row in rows(built, 'summary_choice', split):
      assert row['endings'][row['label']] == own[row['context']]
      assert len(set(row['endings'])) == 4
  share = sum(row['label'] for row in rows(built, 'summary_pair', 'train')) / known_rows(built, 'summary_pair')
  assert 0.4 < share < 0.6


def known_rows(built, task):
  return pydocs.account(cache=built)['rows'][task]['train']


def test_summaries_are_sentences_that_the_body_does_not_repeat(built):
  for row in rows(built, 'summarise', 'train'):
    assert row['target'][0].isupper()
    assert row['target'].endswith('.')
    assert 20 <= len(row['target']) <= 200
    assert row['target'] not in row['source']
    assert 150 <= len(row['source']) <= pydocs_tasks.BODY_CHARS


def test_tags_are_whole_and_in_order(built):
  records = sources.open_source('pydocs/parameters', cache=built)
  assert records.names == pydocs_tasks.PARAMETER_TAGS
  for row in records:
    tags = [records.names[tag] for tag in row['tags']]
    assert len(tags) == len(row['tokens']) <= pydocs_tasks.TOKENS
    assert tags[0] == 'B-name'
    for before, tag in itertools.pairwise(tags):
      assert tag[0] != 'I' or before[1:] == tag[1:]
      assert (tag == 'B-type') <= (before in ('B-name', 'I-name'))
      assert (before in ('B-name', 'I-name')) <= (tag in ('I-name', 'B-type'))


def test_every_answer_stands_where_it_is_said_to(built):
  found = [row for split in pydocs.SPLITS for row in rows(built, 'describe', split)]
  assert len({row['id'] for row in found}) == len(found)
  for row in found:
    (answer,), (start,) = row['answers']['text'], row['answers']['answer_start']
    assert row['context'][start : start + len(answer)] == answer
    head = re.search(r'(?:parameter|about|argument) ([^?]+?)(?: explained)?\?$', row['question'])[1]
    assert re.search(re.escape(head) + r'( \(.*\))?: $', row['context'][:start])


def test_tasks_of_one_document_do_not_depend_on_the_order():
  documents = [
    Document(
      'numpy', f'numpy.f{n}', f'Computes the value {n} of it.\n\n' + f'The value {n} is computed here. ' * 9, '', ()
    )
    for n in range(40)
  ]
  documents = [document._replace(summary=document.text.split('\n')[0]) for document in documents]
  forward = {row['source']: row for row in pydocs_tasks.summarise(documents)}
  backward = {row['source']: row for row in pydocs_tasks.summarise(documents[::-1])}
  assert forward == backward
  assert len(forward) == 40


# The command.


def test_help_imports_nothing_heavy():
  code = (
    'import sys, time\nstart = time.perf_counter()\nfrom plm_jax.commands import pydocs as command\n'
    "try:\n  command.main(['--help'])\nexcept SystemExit as end:\n  print(end.code)\n"
    "print([name for name in ('jax', 'tensorflow_datasets', 'numpy', 'rich') if name in sys.modules])"
  )
  done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True)
  assert '--sample' in done.stdout
  assert done.stdout.endswith('0\n[]\n')


def test_the_command_shows_tables_and_samples(built, capsys):
  assert command.main(['--cache', built]) == 0
  said = capsys.readouterr().out
  assert 'numpy' in said
  assert 'pydocs/describe' in said
  assert command.main(['--cache', built, '--sample', '2', '--task', 'describe', '--split', 'test']) == 0
  said = capsys.readouterr().out
  assert said.count('answers: ') == 2
  assert command.main(['--cache', built, '--sample', '3']) == 0
  assert capsys.readouterr().out.count('package: ') == 3


@pytest.mark.slow
def test_the_whole_corpus(tmp_path, monkeypatch):
  monkeypatch.setattr(pydocs, 'PACKAGES', WHOLE)
  known = pydocs.account(cache=str(tmp_path))
  assert sum(package['chars'] for package in known['packages']) > 9_000_000
  assert all(package['documents'] > 30 for package in known['packages'])
  assert all(known['rows'][task]['train'] > 2_000 and known['rows'][task]['test'] > 100 for task in pydocs.SETS)
  assert json.dumps(known)
