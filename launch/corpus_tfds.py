"""Make a set of TensorFlow Datasets as array_record, with Apache Beam if it needs it; called by launch/corpus.sh."""

import argparse
import contextlib
import difflib
import multiprocessing
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any


def main(imported: Callable[[], Any]) -> int:
  """Make a set; `imported` returns the module of its builder."""
  parser = argparse.ArgumentParser()
  parser.add_argument('name')
  parser.add_argument('--data_dir', default=os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets')
  parser.add_argument('--runner')
  parser.add_argument('--workers', type=int, default=multiprocessing.cpu_count())
  parser.add_argument('--any_size', action='store_true')
  parser.add_argument('--missing', type=pathlib.Path, help='file for the name of a missing module')
  own, runner_flags = sys.argv[1:], []
  if '--' in own:
    own, runner_flags = own[: own.index('--')], own[own.index('--') + 1 :]
  flags = parser.parse_args(own)
  try:
    return make(flags, runner_flags, imported())
  except ImportError as error:
    module = missing_module(error)
    if module is None:
      raise
    flags.missing.write_text(module)
    return 1
  except ValueError as error:
    if 'apache-beam[gcp]' not in str(error):  # a builder that reads gs://
      raise
    flags.missing.write_text('apache_beam_gcp')
    return 1


def missing_module(error: BaseException | None) -> str | None:
  """Return the module that an import lacked; lazy imports of TFDS wrap the error."""
  while error is not None:
    if isinstance(error, ModuleNotFoundError) and error.name:
      return error.name.partition('.')[0]
    error = error.__cause__ or error.__context__
  return None


def make(flags: argparse.Namespace, runner_flags: list[str], where: Any) -> int:
  import tensorflow_datasets as tfds

  data_dir = flags.data_dir if '://' in flags.data_dir else str(pathlib.Path(flags.data_dir).expanduser().resolve())
  bare, _, chosen = flags.name.partition('/')
  found = [one for one in vars(where).values() if isinstance(one, type) and issubclass(one, tfds.core.DatasetBuilder)]
  found = [one for one in found if one.name == bare]
  try:
    if found:
      builder = found[-1](config=chosen or None, data_dir=data_dir, file_format='array_record')
    else:
      builder = tfds.builder(flags.name, data_dir=data_dir, file_format='array_record')
  except tfds.core.DatasetNotFoundError:
    known = tfds.list_builders(with_community_datasets=False)
    near = difflib.get_close_matches(bare, known, 1)
    hint = f' Did you mean {near[0]}?' if near else ''
    return wrong(f'TensorFlow Datasets has no {bare}.{hint} A builder of yours: --module=FILE.py')
  except ValueError as error:
    known = ', '.join((found[-1] if found else tfds.builder_cls(bare)).builder_configs) or 'none'
    return wrong(f'{str(error).strip().splitlines()[0][:100]} Configs of {bare}: {known[:100]}')
  folder = str(builder.data_path)
  if builder.is_prepared():
    if builder.info.file_format.value != 'array_record':
      return wrong(f'{folder} is stored as {builder.info.file_format.value}: name another --data_dir')
    say(f'{flags.name} is there: {folder}')
    return 0
  if not flags.any_size and not fits(builder, data_dir):
    return 2
  began = time.monotonic()
  beam = config(tfds, flags, runner_flags) if isinstance(builder, tfds.core.BeamBasedBuilder) else None
  builder.download_and_prepare(file_format='array_record', download_config=beam)
  rows = ', '.join(f'{name} {split.num_examples:,}' for name, split in builder.info.splits.items())
  say(f'{flags.name} has {rows} examples, {builder.info.dataset_size}; {time.monotonic() - began:.0f} s')
  say(f'it is read with --config.data.path=tfds:{flags.name} (or the folder {folder})')
  return 0


def stock():
  """Import the folders of TFDS with texts, which registers their sets."""
  import tensorflow_datasets.question_answering
  import tensorflow_datasets.summarization
  import tensorflow_datasets.text
  import tensorflow_datasets.text_simplification
  import tensorflow_datasets.translate

  return tensorflow_datasets


def fits(builder, data_dir: str) -> bool:
  """Print the published sizes; return whether a local disk has room."""
  with contextlib.suppress(Exception):  # sizes of sets that are not published
    down, size = ((size or 0) / 1e9 for size in (builder.info.download_size, builder.info.dataset_size))  # GB
    # Beam shuffles the examples through temporary files before it writes them
    needed = down + 2 * size
    if needed:
      say(f'published sizes: download {down:.1f} GB, examples {size:.1f} GB; up to {needed:.1f} GB of disk')
    if needed and '://' not in data_dir:
      place = pathlib.Path(data_dir)
      while not place.exists():
        place = place.parent
      free = shutil.disk_usage(place).free / 1e9
      if free < needed:
        wrong(f'{data_dir} has {free:.1f} GB free: name another --data_dir, or try with --any_size')
        return False
  return True


def config(tfds, flags: argparse.Namespace, runner_flags: list[str]):
  from apache_beam.options.pipeline_options import PipelineOptions

  runner = [f'--runner={flags.runner}']
  if flags.runner == 'DirectRunner':
    # the runner that is part of the package; DirectRunner itself downloads another one
    runner = ['--runner=FnApiRunner', f'--direct_num_workers={flags.workers}']
    if flags.workers > 1:
      runner += ['--direct_running_mode=multi_processing']
  elif flags.runner == 'DataflowRunner':
    requirements = pathlib.Path(__file__).resolve().parents[1] / 'requirements' / 'beam.txt'
    runner += ['--save_main_session', f'--requirements_file={requirements}']
  return tfds.download.DownloadConfig(beam_options=PipelineOptions([*runner, *runner_flags]))


def say(text: str) -> None:
  print(f'[corpus] {text}', file=sys.stderr, flush=True)


def wrong(text: str) -> int:
  say(text)
  return 2
