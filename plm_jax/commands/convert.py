"""Published weights <-> ours, on the command line.

    plm-jax convert import SRC DST   a Hugging Face folder -> parameters for `init_from` and `weights.load`
    plm-jax convert import SRC DST   a folder of ELMo's files (*options.json, *.hdf5, vocab*.txt) -> the same
    plm-jax convert export SRC DST   a run folder or an import -> a Hugging Face folder
    plm-jax convert export SRC DST --form=peft    what a run of adapter 'lora' trained -> a folder of PEFT
    plm-jax convert export SRC DST --form=own     the trunk of a run, of any model -> an import

An import holds one tensor of the source in memory at a time. It writes safetensors files with one array per leaf, or
per layer of a stacked leaf, an index with their digests, and model.json, which says what trunk they belong to. The
tokenizer is copied to `vocab/`.
"""

import argparse
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plm_jax.cli import command
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths

if TYPE_CHECKING:
  from plm_jax.core.types import Template  # loads jax, which the check of the command line does without

log = logging.getLogger(__name__)

SHARD = command.number("Annotated[float, '1e-9 <= x <= 1e6']")
Form = Literal['import', 'release', 'peft', 'own']  # what is written


def main(argv: Sequence[str] | None = None) -> int:
  """Converts a folder."""
  parser = command.Parser('plm-jax convert', description=__doc__, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
  parser.add_argument('direction', choices=('import', 'export'))
  parser.add_argument('source', metavar='SRC')
  parser.add_argument('target', metavar='DST')
  parser.add_argument(
    '--architecture', help='a file of plm_jax/weights/architectures; by default the one that the folder names'
  )
  parser.add_argument('--step', help='the step of a run folder: a number, newest or best (default)')
  parser.add_argument(
    '--part',
    metavar='NAME',
    help='trunk (default) or generator of a run with two trunks (ELECTRA); one task of a run that learned several',
  )
  parser.add_argument(
    '--heads',
    metavar='NAMES',
    help='heads to export, such as mlm,pair, or none; by default those that have a place, and always that of a task',
  )
  parser.add_argument(
    '--form',
    choices=('release', 'peft', 'own'),
    help="release: the whole model, updates of 'lora' merged (default); peft: those updates and the head alone; own: "
    'the trunk, with the heads of --heads, in the form of an import, which any model has',
  )
  parser.add_argument('--shard', type=SHARD, metavar='GB', help='the most GB per file of weights (default 4)')
  parser.add_argument('--force', action='store_true', help='replace what an earlier conversion left in DST')
  arguments = parser.parse_args(argv)
  source, target = (files.absolute(files.path(path)) for path in (arguments.source, arguments.target))
  if not files.is_folder(source):
    raise ConfigError(f'there is no folder {source}')
  form: Form = 'import' if arguments.direction == 'import' else arguments.form or 'release'
  _check_flags(arguments, source, form=form)
  shard = round((arguments.shard or 4) * 1e9)
  _check_target(source, target, form=form, force=arguments.force)
  run_paths.check_new_folder(target, name='DST')
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.weights import bilm  # loads jax
  from plm_jax.weights.convert import export, export_own, import_bilm, import_release

  logs.start()
  if arguments.direction == 'import' and arguments.architecture is None and bilm.is_bilm(source):
    import_bilm(source, target, shard=shard)
  elif arguments.direction == 'import':
    import_release(source, target, architecture=arguments.architecture, shard=shard)
  else:
    step, part = step_named(arguments.step or 'best'), arguments.part or 'trunk'
    asked = (arguments.heads or '').split(',')
    heads = None if arguments.heads is None else [name for name in asked if name and name != 'none']
    if form == 'peft':
      from plm_jax.weights import peft

      if part != 'trunk':
        raise ConfigError(f'--part={part}: --form=peft writes what a whole run trained; --form=release does it')
      peft.export(source, target, step=step, architecture=arguments.architecture, template=_template(source))
      return 0
    if form == 'own':
      around = _template(source, part)
      export_own(source, target, step=step, part=part, heads=heads or (), template=around, shard=shard)
      _say_what_vectors_are(source)
      return 0
    how = {'architecture': arguments.architecture, 'part': part, 'heads': heads}
    export(source, target, step=step, shard=shard, template=_template(source, part), **how)
  return 0


def _template(source: Path, part: str = 'trunk') -> 'Template | None':
  """What stands around a text in the rows of a run, from its config; None for an import and a run without rows."""
  from plm_jax import config
  from plm_jax.config import one_part
  from plm_jax.text import tokenizer
  from plm_jax.training import parts

  folder = run_paths.RunFolder(source)
  if not files.is_file(folder.config) or not tokenizer.exists(folder.vocab):
    return None
  with contextlib.suppress(ConfigError, ValueError):  # a config of an earlier version, or a vocabulary that is gone
    settings = config.resolve(config.load(str(source)))
    own = part if part in one_part.names(settings) else None
    return parts.make_template(one_part.settings_of(settings, own), tokenizer.load(folder.vocab))
  return None


def _say_what_vectors_are(source: Path) -> None:
  """Says so where the word vectors of a run are more than the table of its trunk (GloVe, fastText)."""
  from plm_jax import config
  from plm_jax.config import build

  task = config.load(str(source)).get('objective') if files.is_file(run_paths.RunFolder(source).config) else None
  if task and getattr(build.import_file(f'objectives.{task["name"]}'), 'word_table', None) is not None:
    log.warning(
      f'the vectors that {task["name"]} makes are more than the table of the trunk, which alone is written: '
      f'`plm-jax vectors save --workdir={source} --out=FILE` writes them, and init_from takes that file'
    )


# flags that a form has no use for
UNUSED = {'import': ('heads', 'form'), 'peft': ('heads', 'shard'), 'own': ('architecture',), 'release': ()}


def _check_flags(arguments: argparse.Namespace, source: Path, *, form: Form) -> None:
  """Raises ConfigError for a flag that does nothing here, or that is of runs alone, where the source is none."""
  for flag in UNUSED[form]:
    if vars(arguments)[flag] is not None:
      of = 'convert import' if form == 'import' else f'--form={form}'
      raise ConfigError(f'--{flag}={vars(arguments)[flag]}: {of} does nothing with it: leave it out')
  given = [(flag, value) for flag in ('step', 'part') if (value := vars(arguments)[flag]) is not None]
  if not given or files.is_folder(run_paths.RunFolder(source).checkpoints):
    return
  flag, value = given[0]
  what = 'steps' if flag == 'step' else 'parts'
  raise ConfigError(
    f'--{flag}={value}: {source} is no run with checkpoints, which alone has {what}: leave --{flag} out'
  )


def _check_target(source: Path, target: Path, *, form: Form, force: bool) -> None:
  """Raises ConfigError where the target holds anything but what this command made."""
  if files.is_file(target):
    raise ConfigError(f'{target} is a file: name a folder')
  if not files.listing(target):
    return
  index = 'params.index.json'
  named = {'import': index, 'own': index, 'release': 'model*.safetensors', 'peft': 'adapter_model.safetensors'}
  ours = named[form]
  if target == source or files.exists(run_paths.RunFolder(target).checkpoints) or not files.listing(target, ours):
    raise ConfigError(
      f'{target} is not empty, and no {"import" if form == "import" else "export"} wrote it: name another folder'
    )
  if not force:
    raise ConfigError(f'{target} is not empty: name another folder, or --force to replace what is in it')
