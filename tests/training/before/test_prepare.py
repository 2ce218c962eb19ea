"""`prepare`: what a run reads is there before it, made once, whoever asks and whenever one is killed."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest

from plm_jax.cli import command
from plm_jax.commands import prepare
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.data.rows import store
from plm_jax.text import tokenizer
from plm_jax.training import loop, parts
from tests import conftest, runs

pytestmark = pytest.mark.turns

FACTS = ('data_digest', 'vocab_digest', 'first_ten_batches')


def write_config(folder: pathlib.Path, data: pathlib.Path, **changes: Any) -> pathlib.Path:
  """A config whose caches, that of its evaluation as well, lie in the folder."""
  cache = {'cache': str(folder / 'cache')}
  evaluation = {'validation': {'data': {'split': 'validation', **cache}}}
  settings = runs.settings('mlm', data, data=cache, eval=evaluation, **changes)
  return runs.write_config(folder / 'config.json', settings)


def prepared(config: pathlib.Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
  assert prepare.main([f'--config={config}', '--json', *flags]) == 0
  return json.loads(capsys.readouterr().out)


def start(config: pathlib.Path) -> subprocess.Popen[str]:
  return subprocess.Popen(
    runs.words('prepare', f'--config={config}', '--json'), cwd=conftest.ROOT, env=runs.environment(devices=1),
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )  # fmt: skip


def test_training_finds_what_was_prepared(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  config = write_config(tmp_path, data)
  first = prepared(config, capsys)
  assert [(one['place'], one['what'], one['state']) for one in first['lines']] == [
    (place, what, 'made') for place in ('data', 'eval.validation.data') for what in ('tokens', 'rows')
  ]
  before = runs.snapshot(tmp_path / 'cache')
  assert {one['where'] for one in first['lines']} <= {str(tmp_path / 'cache' / name) for name in before}
  second = prepared(config, capsys)
  assert all(one['state'] == 'there' for one in second['lines'])
  assert runs.snapshot(tmp_path / 'cache') == before  # a second call does nothing
  loop.train(json.loads(config.read_text()), tmp_path / 'run', stop_at=1)
  assert runs.snapshot(tmp_path / 'cache') == before
  kept = json.loads((tmp_path / 'run' / 'data.json').read_text())
  assert {name: first[name] for name in FACTS} == {name: kept[name] for name in FACTS}


@pytest.mark.parametrize('flags', [(), ('--shard=1/2',)], ids=['whole', 'part'])
def test_a_missing_split_of_an_evaluation_is_said_before_anything_is_made(
  flags: tuple[str, ...], data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  config = write_config(tmp_path, data)
  with pytest.raises(ConfigError, match=r"eval\.validation\.data: there is no split 'held_out'"):
    prepare.main([f'--config={config}', '--config.eval.validation.data.split=held_out', *flags])
  assert not [*(tmp_path / 'cache').glob('**/tokens.bin*')]


def test_a_shared_place_that_is_none_is_refused_before_anything_is_made(
  data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  config = write_config(tmp_path, data)
  (tmp_path / 'file').touch()
  for place, message in (('gs:/bucket/x', 'write gs://bucket/x'), (tmp_path / 'file' / 'x', '--shared=.* written to')):
    with pytest.raises(ConfigError, match=message):
      prepare.main([f'--config={config}', f'--shared={place}'])
  assert not (tmp_path / 'cache' / 'tokens').exists()
  shutil.rmtree(tmp_path / 'cache', ignore_errors=True)
  (tmp_path / 'cache').touch()
  with pytest.raises(ConfigError, match=r'data\.cache=.* cannot be written to .*: name another path'):
    prepare.main([f'--config={config}'])


def test_the_table_says_where_things_are(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  assert prepare.main([f'--config={write_config(tmp_path, data)}']) == 0
  said = capsys.readouterr().out
  assert '64 documents, 10,647 tokens' in said
  assert str(tmp_path / 'cache' / 'tokens') in said
  assert 'first_ten_batches' in said


def test_a_vocabulary_is_made_where_there_is_none(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  path = tmp_path / 'new' / 'vocab'
  config = write_config(tmp_path, data, vocab={'path': str(path)})
  with pytest.raises(ConfigError, match=f'no vocabulary in {path}.*--vocab_size=N'):
    prepare.main([f'--config={config}'])
  first = prepared(config, capsys, '--vocab_size=300')
  assert tokenizer.load(path).size == 300
  assert tokenizer.load(path).digest == first['vocab_digest']
  assert prepared(config, capsys)['vocab_digest'] == first['vocab_digest']


def test_a_missing_vocabulary_has_the_cure_that_doctor_names(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  path = tmp_path / 'runs' / 'quickstart' / 'vocab'
  with pytest.raises(ConfigError, match=r'plm-jax vocab train') as told:
    prepare.main(['--config=experiments/bert/base.py:quick', f'--config.vocab.path={path}'])
  arguments = ['--config=experiments/bert/base.py:quick', f'--config.vocab.path={path}']
  _, settings = command.parse(command.command('prepare', ''), arguments, workdir=False)
  fix = parts.missing_vocab(settings, heads=['experiments/bert/base.py:quick'])
  assert fix.partition('. ')[2] in str(told.value)


HEADED = '''"""A config.

plm-jax vocab train --source={corpus} --name=byte_bpe --size=310 --specials=roberta \\\\
    --out={vocab}
plm-jax train --config=this.py --workdir=run
"""
import json
import ml_collections

def get_config(arg=''):
  return ml_collections.ConfigDict({settings!r})
'''


def test_a_vocabulary_is_made_as_the_config_says(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  vocab = tmp_path / 'vocab'
  settings = json.loads(write_config(tmp_path, data, vocab={'path': str(vocab)}).read_text())
  file = tmp_path / 'this.py'
  file.write_text(HEADED.format(corpus=data / 'corpus', vocab=vocab, settings=settings))
  assert prepared(file, capsys)['lines']
  made = tokenizer.load(vocab)
  assert (made.size, made.record['request']['specials']) == (310, 'roberta')


def test_two_at_once_make_each_thing_once(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  config = write_config(tmp_path, data)
  running = [start(config) for _ in range(2)]
  ends = [process.communicate(timeout=120) for process in running]
  assert [process.returncode for process in running] == [0, 0], ends
  first, second = (json.loads(out) for out, _ in ends)
  for one, other in zip(first['lines'], second['lines'], strict=True):
    assert {one['state'], other['state']} == {'there', 'made'}
    assert one['where'] == other['where']
  assert {name: first[name] for name in FACTS} == {name: second[name] for name in FACTS}


def contents(folder: pathlib.Path) -> dict[str, str]:
  """Path -> digest of every file."""
  return {name: digest for name, (_, digest) in runs.snapshot(folder).items() if digest}


def states(found: dict[str, Any]) -> set[str]:
  return {line['state'] for line in found['lines']}


def test_other_hosts_take_what_one_has_made(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  """Whole and sound, or it is made; also where a store was under way."""
  shared, hosts = tmp_path / 'shared', [tmp_path / str(number) for number in range(5)]
  for folder in hosts:
    folder.mkdir()
  configs = [write_config(folder, data) for folder in hosts]
  first = prepared(configs[0], capsys, f'--shared={shared}')
  assert states(first) == {'made'}
  before, whole = runs.snapshot(shared), contents(shared)
  [under_way, _] = (hosts[1] / 'cache' / 'tokens' / folder.name for folder in sorted((shared / 'tokens').iterdir()))
  under_way.mkdir(parents=True)
  (under_way / 'blocks.jsonl').write_text('{}')
  (under_way / 'tokens.bin').write_text('half')
  with monkeypatch.context() as patch:
    patch.delattr(store, '_encode')  # nothing is tokenised
    second = prepared(configs[1], capsys, f'--shared={shared}')
    assert states(second) == {'taken'}
    assert states(prepared(configs[1], capsys, f'--shared={shared}')) == {'there'}
  assert runs.snapshot(shared) == before
  for file in shared.rglob('manifest.json'):
    file.unlink()  # as if it was killed before its end
  third = prepared(configs[2], capsys, f'--shared={shared}')
  assert states(third) == {'made'}
  for file in shared.rglob('tokens.bin'):
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
  fourth = prepared(configs[3], capsys, f'--shared={shared}')
  assert {line['what']: line['state'] for line in fourth['lines']} == {'tokens': 'made', 'rows': 'taken'}
  assert contents(shared) == whole  # what was damaged there is replaced
  fifth = prepared(configs[4], capsys, f'--shared={shared}')
  assert states(fifth) == {'taken'}
  for found in (second, third, fourth, fifth):
    assert {name: found[name] for name in FACTS} == {name: first[name] for name in FACTS}


def test_hosts_read_in_place_what_one_has_made(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  """The same batches, with no ids in the cache; a copy is made again once the folder is removed."""
  shared, hosts = tmp_path / 'shared', [tmp_path / str(number) for number in range(2)]
  for folder in hosts:
    folder.mkdir()
  configs = [write_config(folder, data) for folder in hosts]
  first = prepared(configs[0], capsys, f'--shared={shared}')
  whole = contents(shared)
  monkeypatch.delattr(store, '_encode')  # nothing is tokenised
  for state in ('taken', 'there'):
    found = prepared(configs[1], capsys, f'--shared={shared}', '--in_place')
    located = {line['ids'] for line in found['lines'] if line['what'] == 'tokens'}
    assert located == {str(file) for file in shared.rglob('tokens.bin')}
    assert states(found) == {state} and {name: found[name] for name in FACTS} == {name: first[name] for name in FACTS}
  assert contents(shared) == whole
  assert not list(hosts[1].rglob('tokens.bin'))
  for config, folder in zip(configs, hosts, strict=True):
    loop.train(json.loads(config.read_text()), folder / 'run', stop_at=2)
  copied, read = ((folder / 'run' / 'data.json').read_text() for folder in hosts)
  assert copied == read
  for folder in (hosts[1] / 'cache' / 'tokens').iterdir():
    shutil.rmtree(folder)
  assert states(prepared(configs[1], capsys, f'--shared={shared}')) == {'taken'}
  assert len(list(hosts[1].rglob('tokens.bin'))) == 2
  with pytest.raises(ConfigError, match=r'add --shared=DIR'):
    prepare.main([f'--config={configs[1]}', '--in_place'])


def test_tokens_in_place_that_are_moved_damaged_or_gone_are_found_again(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  """As the message says, by repeating the command."""
  (tmp_path / 'host').mkdir()
  config, moved = write_config(tmp_path / 'host', data), tmp_path / 'moved'
  first = prepared(write_config(tmp_path, data), capsys, f'--shared={tmp_path}/shared')
  monkeypatch.chdir(tmp_path)
  assert states(prepared(config, capsys, '--shared=shared', '--in_place')) == {'taken'}
  monkeypatch.chdir('/')  # the location does not depend on it
  assert states(prepared(config, capsys)) == {'there'}
  (tmp_path / 'shared').rename(moved)
  with pytest.raises(RunError, match='does not exist: repeat plm-jax prepare with --shared and --in_place'):
    loop.train(json.loads(config.read_text()), tmp_path / 'run', stop_at=1)
  with monkeypatch.context() as patch:
    patch.delattr(store, '_encode')  # nothing is tokenised
    found = prepared(config, capsys, f'--shared={moved}', '--in_place')
  assert {line['state'] for line in found['lines'] if line['what'] == 'tokens'} == {'taken'}
  assert not list((tmp_path / 'host').rglob('tokens.bin'))
  for manifest in (tmp_path / 'host').rglob('manifest.json'):
    manifest.unlink()  # as if it was killed, and then copied
  prepared(config, capsys, f'--shared={moved}')
  assert len(list((tmp_path / 'host').rglob('tokens.bin'))) == 2
  assert not list((tmp_path / 'host').rglob('in_place.json'))
  shutil.rmtree(tmp_path / 'host' / 'cache')
  prepared(config, capsys, f'--shared={moved}', '--in_place')
  whole = contents(moved)
  for file in moved.rglob('tokens.bin'):
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
  for _ in range(2):
    with pytest.raises(RunError, match=r'damaged \(from token 0\): remove it, and repeat') as told:
      prepared(config, capsys, f'--shared={moved}', '--in_place')
    shutil.rmtree(str(told.value).split()[0])
  found = prepared(config, capsys, f'--shared={moved}', '--in_place')
  assert {name: found[name] for name in FACTS} == {name: first[name] for name in FACTS}
  names = {name for name in whole if name.endswith('.bin')}
  assert {name: contents(moved)[name] for name in names} == {name: whole[name] for name in names}


def test_hosts_copy_the_vocabulary(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  """It is stored under `vocab.path`; not with the weights of a model."""
  shared, first = f'--shared={tmp_path / "shared"}', tmp_path / 'first' / 'vocab'
  config = write_config(tmp_path, data, vocab={'path': str(first)})
  made = prepared(config, capsys, '--vocab_size=300', shared)
  shutil.rmtree(first.parent)  # another host
  monkeypatch.delattr(prepare.vocab, 'main')
  assert prepared(config, capsys, shared)['vocab_digest'] == made['vocab_digest']
  assert tokenizer.load(first).size == 300
  file = tokenizer.published.find(first)
  single = write_config(tmp_path, data, vocab={'path': str(shutil.copy(file, tmp_path / 'one.json'))})
  prepared(single, capsys, shared)
  (tmp_path / 'one.json').unlink()
  prepared(single, capsys, shared)
  assert (tmp_path / 'one.json').read_bytes() == file.read_bytes()
  shutil.rmtree(tmp_path / 'shared' / 'vocab')
  with (first / 'model.safetensors').open('wb') as weights:
    weights.truncate(2 * 10**8)
  config = write_config(tmp_path, data, vocab={'path': str(first)})
  prepared(config, capsys, shared)
  assert not (tmp_path / 'shared' / 'vocab').exists()


SLOW = """
import time
from plm_jax.commands import prepare
from plm_jax.cli import command
from plm_jax.data.rows import store

encode, store._BLOCK_DOCUMENTS = store._encode, 10

def slowly(documents, vocab):
  time.sleep(0.3)
  return encode(documents, vocab)

store._encode = slowly
command.leave(command.run(prepare.main))
"""


def test_a_kill_loses_nothing_and_leaves_nothing_half(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  """Killed in the middle of seven blocks, which are tokenised slowly."""
  folders = {name: tmp_path / name for name in ('killed', 'whole')}
  for folder in folders.values():
    folder.mkdir()
  killed, tokens = write_config(folders['killed'], data), folders['killed'] / 'cache' / 'tokens'
  log = tmp_path / 'log'
  with runs.started([sys.executable, '-c', SLOW, f'--config={killed}'], log=log) as process:

    def begun() -> bool:
      return any(file.read_text().count('\n') >= 3 for file in tokens.glob('*/blocks.jsonl'))

    runs.wait_until(begun, process=process, log=log)
    process.send_signal(signal.SIGKILL)
    process.wait()
  assert not list(tokens.glob('*/manifest.json'))
  [journal] = tokens.glob('*/blocks.jsonl')
  kept, seen = len(journal.read_text().splitlines()), []
  with pytest.MonkeyPatch.context() as patch:
    encode = store._encode
    patch.setattr(store, '_encode', lambda documents, vocab: seen.extend(documents) or encode(documents, vocab))
    found = prepared(killed, capsys)
  assert len(seen) == 64 - 10 * kept + 16  # what was not made, and the evaluation
  whole = prepared(write_config(folders['whole'], data), capsys)
  assert {name: found[name] for name in FACTS} == {name: whole[name] for name in FACTS}
  store_of = {name: folder / 'cache' / 'tokens' / journal.parent.name for name, folder in folders.items()}
  assert (store_of['killed'] / 'tokens.bin').read_bytes() == (store_of['whole'] / 'tokens.bin').read_bytes()
