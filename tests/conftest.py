"""What every test may rely on: four simulated CPU devices, a compilation cache, a small corpus; which long tests run.

The environment is set before anything imports jax, and only where the caller has not set it, so that child processes
inherit it and a run on an accelerator stays possible: `JAX_PLATFORMS=tpu bash launch/test.sh`. As a user's programs are
compiled: `XLA_FLAGS='--xla_backend_optimization_level=3 --xla_cpu_use_fusion_emitters=true' bash launch/test.sh`, of
which jax 0.11 knows the first flag alone.
"""

import hashlib
import importlib.util
import os
import pathlib
import random
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
  from plm_jax.core.types import Vocab

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / 'shared' / 'data'
RELEASED = ROOT / 'runs' / 'released'
# so that the tests of a commit end within half an hour on two cores that have compiled nothing yet
PARTS = 96  # of tests marked slow
TURNS = 18  # of tests and files marked turns
PEERS = ('torch', 'transformers')
REPEAT, REPEATED = 'Repeat with:', 10  # before the command that repeats so many failing tests
XLA_FLAGS = (
  '--xla_force_host_platform_device_count=4',
  # compiles in a sixth of the time for a slower program; nearly all the time of these tests is compilation
  '--xla_backend_optimization_level=0',
)
if metadata.version('jaxlib').startswith('0.10.'):  # later ones end the process at this flag, which they do not know
  XLA_FLAGS += ('--xla_cpu_use_fusion_emitters=false',)
MAPS = pathlib.Path('/proc/self/maps')
MAPS_LIMIT = 40_000  # of 65,530 that Linux allows a process by default
MAPS_EVERY = 2  # seconds between looks at them, each of which takes hundredths of a second where there are many

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
for flag in XLA_FLAGS:
  if flag.partition('=')[0] not in os.environ.get('XLA_FLAGS', ''):
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flag}'.strip()
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(pathlib.Path('~/.cache/plm_jax/jax').expanduser()))
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.05')
os.environ.setdefault('MPLBACKEND', 'agg')


# Which of the long tests run.


def commit() -> str | None:
  """The commit checked out, or None where git or the history is missing."""
  try:
    found = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=ROOT, capture_output=True, text=True, check=False)
  except FileNotFoundError:
    return None
  return found.stdout.strip() if found.returncode == 0 else None


def group(nodeid: str) -> str:
  """What a test shares with those of its file that have the same parameters: much of what they compile."""
  path, _, rest = nodeid.partition('::')
  parameters = rest.partition('[')[2]
  return f'{path}[{parameters}' if parameters else nodeid


def part(text: str, parts: int = PARTS) -> int:
  """A number below `parts` that depends on the text alone."""
  return hashlib.sha256(text.encode()).digest()[0] % parts


def has_its_turn(item: pytest.Item, head: str) -> bool:
  """Whether the commit `head` runs a test. A file marked turns runs as a whole, since its tests share what is slow."""
  for node, _ in item.iter_markers_with_node('turns'):
    whose = node.nodeid if isinstance(node, pytest.Module) else group(item.nodeid)
    return part(whose, TURNS) == part(head, TURNS)
  return True


def is_drawn(item: pytest.Item, head: str) -> bool:
  """Whether the commit `head` runs a test marked slow, or all of a module marked so."""
  return part(group(item.nodeid)) == part(head)


def pytest_addoption(parser: pytest.Parser) -> None:
  parser.addoption(
    '--slow',
    choices=('none', 'part', 'all'),
    default='none',
    help='which tests marked slow run: none, the part that this commit draws, or all (also: launch/test.sh --all)',
  )


def pytest_configure(config: pytest.Config) -> None:
  head = commit()
  choice = config.getoption('--slow')
  if choice == 'none':
    said = 'none'
  elif choice == 'all':
    said = 'all'
  elif head is None:
    choice, said = 'none', 'none, because git does not say which commit this is'
  else:
    said = f'part {part(head)} of {PARTS}, drawn by commit {head[:12]}'
  config.stash[SLOW] = (choice, head or '')
  config.stash[SAID] = said


SLOW = pytest.StashKey[tuple[str, str]]()
SAID = pytest.StashKey[str]()
LEFT_OUT = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
  choice, head = config.stash[SLOW]
  asked_by_name = any('::' in argument for argument in config.args)
  asked_by_file = all(argument.endswith('.py') for argument in config.args)

  def runs(item: pytest.Item) -> bool:
    if choice == 'all' or asked_by_name:
      return True
    if item.get_closest_marker('slow') is None:
      return asked_by_file or has_its_turn(item, head)
    return choice == 'part' and is_drawn(item, head)

  left_out = [item for item in items if not runs(item)]
  items[:] = [item for item in items if runs(item)]
  places: dict[str, int] = {}
  for place, item in enumerate(items):
    places.setdefault(group(item.nodeid), place)
  items.sort(key=lambda item: places[group(item.nodeid)])  # what shares compiled functions stands together
  config.stash[LEFT_OUT] = len(left_out)
  config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
  output = getattr(session.config, 'workeroutput', {})  # of a worker: pytest-xdist sends it to the process that reports
  output['left_out'] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
  output = getattr(node, 'workeroutput', {})  # none where the worker died; all workers leave out the same
  node.config.stash[LEFT_OUT] = output.get('left_out', node.config.stash.get(LEFT_OUT, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
  left_out = config.stash.get(LEFT_OUT, 0)
  if left_out:
    terminalreporter.write_line(f'{left_out} long tests left out; bash launch/test.sh --all runs them.')
  failed = [report.nodeid for kind in ('failed', 'error') for report in terminalreporter.getreports(kind)]
  if failed:  # .ci/run prints this line last; named tests run though they are long
    named = ' '.join(map(shlex.quote, list(dict.fromkeys(failed))[:REPEATED]))
    terminalreporter.write_line(f'{REPEAT} bash launch/test.sh -n 0 {named}')


def pytest_report_header(config: pytest.Config) -> list[str]:
  import jax

  versions = ' '.join(f'{name} {metadata.version(name)}' for name in ('jax', 'jaxlib', 'flax', 'optax', 'numpy'))
  absent = [name for name in PEERS if importlib.util.find_spec(name) is None]
  return [
    f'devices: {jax.device_count()} x {jax.devices()[0].device_kind} ({jax.default_backend()})',
    f'versions: {versions}',
    f'live comparisons: {"skipped, without " + " and ".join(absent) if absent else "run, with " + " and ".join(PEERS)}',
    f'shared data: {SHARED_DATA if SHARED_DATA.is_dir() else "absent, tests that read it are skipped"}',
    f'long tests: {config.stash[SAID]}',
  ]


@pytest.fixture(autouse=True, scope='module')
def drop_compiled_functions() -> Iterator[None]:
  """Keeps memory bounded: what one file compiled is of little use to the next, and the cache on disk has it."""
  yield
  import jax

  jax.clear_caches()


@pytest.fixture(scope='session')
def looked_at_maps() -> dict[str, float]:
  """When `bound_memory_maps` last looked."""
  return {'at': time.monotonic()}


@pytest.fixture(autouse=True)
def bound_memory_maps(looked_at_maps: dict[str, float]) -> Iterator[None]:
  """Each compiled function of a CPU holds several memory maps, and a process that runs out of them crashes."""
  yield
  if not MAPS.exists() or time.monotonic() < looked_at_maps['at'] + MAPS_EVERY:
    return
  if MAPS.read_bytes().count(b'\n') > MAPS_LIMIT:
    import jax

    jax.clear_caches()
  looked_at_maps['at'] = time.monotonic()


# What tests read.


@pytest.fixture(scope='session')
def shared_data() -> Callable[[str], pathlib.Path]:
  """`shared_data(name)`: the path of a data set beside the repository; skips the test where it is absent."""

  def find(name: str) -> pathlib.Path:
    path = SHARED_DATA / name
    if not path.exists():
      pytest.skip(f'{name} is not in {SHARED_DATA}')
    return path

  return find


@pytest.fixture(scope='session')
def released() -> Callable[[str], pathlib.Path]:
  """`released('minilm')`, `released('smollm2')`: a folder of real weights; skips the test where it is absent."""

  def find(name: str) -> pathlib.Path:
    path = RELEASED / name
    if not path.exists():
      pytest.skip(f'runs/released/{name} is absent; `bash launch/released.sh {name}` makes it')
    return path

  return find


NAMES = ('Anna', 'Boris', 'Clara', 'David', 'Elena', 'Felix', 'Grace', 'Henry', 'Irene', 'Jonas', 'Karen', 'Louis')
PEOPLE = ('teacher', 'sailor', 'doctor', 'painter', 'farmer', 'student', 'baker', 'lawyer', 'pilot', 'gardener')
PLACES = ('harbour', 'library', 'market', 'village', 'station', 'garden', 'museum', 'castle', 'bakery', 'kitchen')
THINGS = ('letter', 'lantern', 'bicycle', 'violin', 'basket', 'painting', 'umbrella', 'clock', 'notebook', 'telescope')
QUALITIES = ('old', 'small', 'heavy', 'bright', 'broken', 'quiet', 'beautiful', 'strange', 'dusty', 'expensive')
MOODS = ('happy', 'tired', 'curious', 'worried', 'proud', 'hungry', 'patient', 'nervous', 'grateful', 'bored')
ACTIONS = (
  ('carried', 'to'),
  ('found', 'near'),
  ('sold', 'at'),
  ('repaired', 'at'),
  ('forgot', 'in'),
  ('painted', 'beside'),
  ('hid', 'behind'),
)
TIMES = ('In the morning', 'Last winter', 'After dinner', 'On Sunday', 'Before the storm', 'In 1924', 'At 7:30')
REASONS = (
  'it was raining',
  'nobody else would',
  'the road was closed',
  'the train was late',
  'it had been promised',
  "there wasn't enough time",
)


def story(draw: random.Random) -> str:
  """A short text about one person and one thing, whose sentences refer to each other."""
  name, friend = draw.sample(NAMES, 2)
  person, thing, quality = draw.choice(PEOPLE), draw.choice(THINGS), draw.choice(QUALITIES)
  start, goal = draw.sample(PLACES, 2)
  article = 'an' if quality[0] in 'aeiou' else 'a'
  verb, preposition = draw.choice(ACTIONS)
  middle = [
    f'{draw.choice(TIMES)}, {name} {verb} the {thing} {preposition} the {goal} because {draw.choice(REASONS)}.',
    f'"Is this {thing} yours?" asked {friend}, who was rather {draw.choice(MOODS)}.',
    f'The {thing} was so {quality} that {friend} wanted to buy it for {draw.randint(2, 90)} pounds.',
    f'{friend} walked from the {start} to the {goal} and did not see {name}.',
    f'Everyone in the {start} knew the {thing}, but only {name} knew what it was for.',
    f'They talked about the {thing} until the {draw.choice(PLACES)} closed, and {name} became {draw.choice(MOODS)}.',
  ]
  draw.shuffle(middle)
  return ' '.join(
    [
      f'{name} was a {person} who lived near the {start} and owned {article} {quality} {thing}.',
      *middle[: draw.randint(2, len(middle))],
      f'In the end the {person} gave the {thing} to {friend} and went home.',
    ]
  )


@pytest.fixture(scope='session')
def tiny_corpus() -> Sequence[str]:
  """400 short English documents of 4 to 8 sentences, about 165 kB, the same in every run."""
  draw = random.Random(0)
  return tuple(story(draw) for _ in range(400))


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """The folder of `runs.write_data`: a corpus, labelled rows and a vocabulary; each file of tests has its own."""
  from tests import runs

  return runs.write_data(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module')
def log() -> Iterator[None]:
  """What runs say reaches their log.txt."""
  from tests import runs

  with runs.logging_on():
    yield


@pytest.fixture(scope='session')
def tiny_vocab(tiny_corpus: Sequence[str]) -> 'Vocab':
  """512 byte-level BPE tokens learned from `tiny_corpus`, with every special token."""
  from plm_jax.text import byte_bpe

  return byte_bpe.train(tiny_corpus, size=512)
