"""Whole runs of a size for tests: a small corpus with labels, configs of tiny models on it, commands as a user types
them, and what is read back from a run folder.

Configs with the same keys compile to the same program, so the compilation cache serves all the files that use them.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax import checkpoint, config
from plm_jax.checkpoint import saved_steps
from plm_jax.runs import metrics
from plm_jax.text import byte_bpe
from plm_jax.training import loop
from tests import conftest

STEPS = 12  # of short runs, 6 epochs of the labelled rows
SIZES = {'hidden_dim': 32, 'num_layers': 2, 'num_heads': 2, 'mlp_dim': 64, 'max_length': 32}
SPEED = (
  'tokens_per_second',
  'mfu',
  'host_wait_seconds',
  'device_memory_gib',
  'device_memory_peak_gib',
  'host_memory_gib',
)
VOCAB_SIZE = 400
CLASSES = ('outside', 'inside')
QUICK = {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1'}  # of the environment: compiles faster


# Data and configs.


# what of a result depends on how long the run took, in place of which two results are compared
TIMED = {'seconds': 0, 'goodput': 0, 'metrics': 0, 'metrics_sha256': 0}


def write_data(folder: pathlib.Path) -> pathlib.Path:
  """A corpus in `corpus/`, sentences with labels in `labelled/`, a vocabulary in `vocab/`; always the same."""
  draw = random.Random(1)
  documents = [conftest.story(draw) for _ in range(80)]
  corpus, labelled = folder / 'corpus', folder / 'labelled'
  corpus.mkdir(parents=True)
  (corpus / 'train.txt').write_text('\n\n'.join(documents[:64]))
  (corpus / 'validation.txt').write_text('\n\n'.join(documents[64:]))
  labelled.mkdir()
  (labelled / 'labels.json').write_text(json.dumps({'label': CLASSES}))
  for split, rows in {'train': 16, 'validation': 24, 'test': 24}.items():
    lines = [json.dumps(sentence(draw, label=number % 2)) for number in range(rows)]
    (labelled / f'{split}.jsonl').write_text('\n'.join(lines) + '\n')
  byte_bpe.train(documents, size=VOCAB_SIZE).save(folder / 'vocab')
  return folder


def sentence(draw: random.Random, *, label: int) -> dict[str, Any]:
  """A sentence of a few or of many tokens that says where its person is."""
  place = draw.choice((conftest.PLACES[:5], conftest.PLACES[5:])[label])
  text = f'{draw.choice(conftest.NAMES)} is in the {place}.'
  if draw.random() < 0.5:
    text = f'{draw.choice(conftest.TIMES)} it was said that {text}'
  return {'text': text, 'label': label}


def settings(kind: str, folder: pathlib.Path, /, **changes: Any) -> dict[str, Any]:
  """A resolved config.

  Args:
    kind: 'mlm' (BERT), 'causal_lm' (GPT), 'permutation_lm' (XLNet, with its memory), 'bidirectional_lm' (ELMo),
      'awd_lstm' (with its carry) or 'classify' (BERT, rows of two lengths).
    folder: made by `write_data`.
    changes: keys of the config; a dict changes the keys that it names.
  """
  plain: dict[str, Any] = {
    'steps': STEPS,
    'log_every': 2,
    'eval_every': 6,
    'save_every': 4,
    'save_minutes': None,
    'vocab': {'name': 'byte_bpe', 'path': str(folder / 'vocab')},
    'model': {'name': 'gpt' if kind == 'causal_lm' else 'bert', 'variant': 'tiny', 'overrides': SIZES},
    'data': {'path': str(folder / 'corpus'), 'length': 32, 'batch_size': 8, 'cache': str(folder / 'cache')},
    'optim': {'name': 'adamw', 'rate': 1e-2, 'schedule': 'linear', 'warmup': 2, 'decay': 0.01, 'clip': 1.0},
    'eval': {'validation': {'data': {'split': 'validation'}}},
    'best': ('validation/loss', 'min'),
  }
  if kind == 'classify':
    plain['adapter'] = {'name': 'classify', 'classes': len(CLASSES)}
    plain['data'] |= {'name': 'labelled', 'path': str(folder / 'labelled'), 'buckets': (16,)}
    plain['best'] = ('validation/accuracy', 'max')
  elif kind == 'permutation_lm':
    plain['objective'] = {'name': kind}
    sizes = {name: size for name, size in SIZES.items() if name != 'max_length'}
    plain['model'] = {'name': 'xlnet', 'variant': 'tiny', 'overrides': sizes | {'memory_length': 24}}
    plain['data'] |= {'name': 'bptt', 'second_segment': True, 'reverse_half': True}
  elif kind == 'bidirectional_lm':
    plain['objective'] = {'name': kind}
    plain['model'] = {'name': 'elmo', 'variant': 'tiny', 'overrides': {'hidden_dim': 32, 'mlp_dim': 48}}
    plain['data'] |= {'name': 'bptt', 'both_directions': True, 'length': 8}
  elif kind == 'awd_lstm':
    plain['objective'] = {'name': 'causal_lm', 'memory': True, 'activation': 2.0, 'temporal': 1.0}
    plain['model'] = {'name': kind, 'variant': 'tiny', 'overrides': {'hidden_dim': 32, 'mlp_dim': 48}}
    plain['data'] |= {'name': 'bptt', 'length': 16}
  else:
    plain['objective'] = {'name': kind}
    plain['data'] |= {'name': 'stream', 'layout': 'stream' if kind == 'causal_lm' else 'documents'}
  for key, value in changes.items():
    plain[key] = {**plain.get(key, {}), **value} if isinstance(value, Mapping) else value
  return config.resolve(plain)


def write_config(file: pathlib.Path, values: Mapping[str, Any]) -> pathlib.Path:
  file.write_text(json.dumps(values))
  return file


@contextlib.contextmanager
def logging_on() -> Iterator[None]:
  """Lets what a run says reach its log.txt, and undoes what a command changes about the logger."""
  log = logging.getLogger('plm_jax')
  level, propagate, handlers = log.level, log.propagate, list(log.handlers)
  log.setLevel(logging.INFO)
  try:
    yield
  finally:
    log.setLevel(level)
    log.propagate, log.handlers = propagate, handlers


# Commands.


def words(name: str, *flags: Any) -> list[str]:
  return [sys.executable, '-m', 'plm_jax', name, *map(str, flags)]


def environment(*, devices: int, **changes: str) -> dict[str, str]:
  """That of this process with other simulated devices, and changes."""
  flags = re.sub(r'--xla_force_host_platform_device_count=\S*', '', os.environ.get('XLA_FLAGS', ''))
  return {**os.environ, 'XLA_FLAGS': f'{flags} --xla_force_host_platform_device_count={devices}'.strip(), **changes}


def command(name: str, *flags: Any, devices: int = 1, timeout: float = 240) -> subprocess.CompletedProcess[str]:
  """`plm-jax <name>` to its end."""
  return subprocess.run(
    words(name, *flags),
    cwd=conftest.ROOT,
    env=environment(devices=devices),
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
  )


def two_processes(*flags: Any) -> None:
  """`plm-jax train` in two processes of two devices each, to its end."""
  launch = [sys.executable, str(conftest.ROOT / 'launch' / 'local.py'), '--processes=2', '--devices=2', '--grace=60']
  done = subprocess.run(
    [*launch, '--', '-m', 'plm_jax', 'train', *map(str, flags)],
    cwd=conftest.ROOT,
    env={**os.environ, **QUICK},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-3000:]


@contextlib.contextmanager
def started(
  command: list[str], *, log: pathlib.Path, devices: int = 1, **changes: str
) -> Iterator[subprocess.Popen[bytes]]:
  """A command that runs during the body, its output in `log`; killed at the end if it is still there.

  `changes` are of the environment.
  """
  with open(log, 'ab') as output:
    process = subprocess.Popen(
      command,
      cwd=conftest.ROOT,
      env=environment(devices=devices, **changes),
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
    )
  try:
    yield process
  finally:
    if process.poll() is None:
      process.kill()
    process.wait()


def wait_until(
  true: Callable[[], bool], *, process: subprocess.Popen[bytes], log: pathlib.Path, timeout: float = 240
) -> None:
  """Returns when `true()`; fails where the process ends first or nothing happens."""
  deadline = time.monotonic() + timeout
  while not true():
    assert process.poll() is None, f'ended with {process.returncode}:\n{log.read_text()[-2000:]}'
    assert time.monotonic() < deadline, f'nothing happened in {timeout} s:\n{log.read_text()[-2000:]}'
    time.sleep(0.01)


# What a run left.


def saved_state(workdir: pathlib.Path, *, step: int | None = None) -> dict[str, np.ndarray]:
  """Leaf path -> array of everything in a checkpoint, the newest by default."""
  folder = workdir / 'checkpoints'
  step = max(saved_steps.numbered(folder)) if step is None else step
  leaves = saved_steps.check(folder / str(step)).leaves
  found = checkpoint.arrays(folder, step)
  assert found.keys() == leaves.keys()
  return found


def differing(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> list[str]:
  """The leaves that are not the same bits."""
  return [
    name
    for name in sorted({*ours, *theirs})
    if name not in ours
    or name not in theirs
    or ours[name].dtype != theirs[name].dtype
    or ours[name].tobytes() != theirs[name].tobytes()
  ]


def gone_on(settings: dict[str, Any], folder: pathlib.Path) -> pathlib.Path:
  """The folder of a run that was stopped at step 3 and went on, with the bits of one that nobody stopped."""
  whole = folder.with_name(f'{folder.name}_WHOLE')
  assert loop.train(settings, whole).exit_code == loop.DONE
  assert loop.train(settings, folder, stop_at=3).exit_code == loop.DONE
  assert loop.train(settings, folder).exit_code == loop.DONE
  assert not differing(saved_state(whole), saved_state(folder))
  return folder


def params_of(state: Mapping[str, np.ndarray], below: str = 'params') -> dict[str, np.ndarray]:
  return {name: leaf for name, leaf in state.items() if name.startswith(f'{below}/')}


def curve(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of metrics without what depends on the clock."""
  return [{name: value for name, value in row.items() if name not in SPEED} for row in metrics.read(workdir)]


def snapshot(folder: pathlib.Path) -> dict[str, tuple[int, str]]:
  """Path -> time of change and content, of every file and folder."""
  return {
    str(path.relative_to(folder)): (
      path.stat().st_mtime_ns,
      hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else '',
    )
    for path in [folder, *folder.rglob('*')]
  }


class Saved:
  """Checkpoints of which nothing but their steps is asked."""

  def __init__(self, *steps: int):
    self._steps = steps

  def wait(self) -> None: ...

  def steps(self) -> Sequence[int]:
    return self._steps
