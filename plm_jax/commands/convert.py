"""Convert pretrained checkpoints from and to Hugging Face's format.

plm-jax convert import SRC DST                from a Hugging Face folder, for `init_from` and `weights.load`
plm-jax convert import SRC DST                from a folder with ELMo's files (*options.json, *.hdf5, vocab*.txt)
plm-jax convert import SRC DST                from flax_model.msgpack, or a state dict of PyTorch, with config.json
plm-jax convert import SRC DST                from a checkpoint of T5X (checkpoint, target.*)
plm-jax convert import SRC DST                from ULMFiT's or CoVe's release (fwd_wt103.h5, wmtlstm-*.pth)
plm-jax convert import FILE.gguf DST          from LLaMA in llama.cpp's format (`bash launch/setup.sh released`)
plm-jax convert export SRC DST                from a run or a converted checkpoint, to a Hugging Face folder
plm-jax convert export SRC DST --form=peft    the LoRA update of a run (adapter 'lora'), to a PEFT folder
plm-jax convert export SRC DST --form=own     the trunk of a run of any model, to a converted checkpoint

`import` keeps one tensor of the source in memory at a time. It writes safetensors files with one array per leaf, or per
layer of a stacked leaf, and an index with their checksums. model.json describes the trunk (the backbone: the network
without a task head). The tokenizer is copied to `vocab/`.
"""

import argparse
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plm_jax.cli import command, logs
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, other_forms, run_paths

if TYPE_CHECKING:
  from plm_jax.core.types import Template  # loads jax, which checking the flags does not need

log = logging.getLogger(__name__)

SHARD = command.number("Annotated[float, '1e-9 <= x <= 1e6']")
Form = Literal['import', 'release', 'peft', 'own']  # what is written


def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax convert`; import jax only for valid flags."""
  parser = command.Parser('plm-jax convert', __doc__)
  add = parser.add_argument
  add('direction', choices=('import', 'export'), help='direction of the conversion')
  add('source', metavar='SRC', help='folder to convert')
  add('target', metavar='DST', help='new folder')
  add('--architecture', help='architecture of the model (default: that of SRC)')
  add('--step', type=command.step, help="checkpoint of a run: a number, 'newest' or 'best' (default)")
  add(
    '--part',
    metavar='NAME',
    help='trunk (default) or generator of a run with two trunks (ELECTRA), or a task of a multi-task run',
  )
  add(
    '--heads',
    metavar='NAMES',
    help='heads to export, such as mlm,pair, or none (default: all that the format has; a task head always)',
  )
  add(
    '--form',
    choices=('release', 'peft', 'own'),
    help="release: the whole model, with 'lora' merged (default); peft: the LoRA update and the head; own: the trunk "
    'and --heads as a converted checkpoint, for any model',
  )
  add('--shard', type=SHARD, metavar='GB', help='maximum GB per file of weights (default 4)')
  add('--force', action='store_true', help='replace an earlier conversion in DST')
  arguments = parser.parse_args(argv)
  problem = other_forms.explain(arguments.source)
  if problem and (arguments.direction == 'export' or 'convert import' not in problem):
    raise ConfigError(problem)
  source, target = (files.absolute(files.path(path)) for path in (arguments.source, arguments.target))
  form: Form = 'import' if arguments.direction == 'import' else arguments.form or 'release'
  _check_flags(arguments, source, form=form)
  shard = round((arguments.shard or 4) * 1e9)
  _check_target(source, target, form=form, force=arguments.force)
  run_paths.check_new_folder(target, name='DST')
  from plm_jax.weights import bilm, torch_lstm  # loads jax
  from plm_jax.weights.convert import export, export_own, import_bilm, import_release

  logs.start()
  lstm = other_forms.lstm_file(source)
  if arguments.direction == 'import' and lstm is not None:
    import_bilm(lstm, target, shard=shard, read=torch_lstm.opened)
  elif arguments.direction == 'import' and arguments.architecture is None and bilm.is_bilm(source):
    import_bilm(source, target, shard=shard)
  elif arguments.direction == 'import':
    import_release(source, target, architecture=arguments.architecture, shard=shard)
  else:
    from plm_jax.training.init_sources import unfinished

    step, part = arguments.step, arguments.part or 'trunk'
    if step is None:
      step = 'best'
    names = arguments.heads
    heads = None if names is None else [name for name in names.split(',') if name not in ('', 'none')]
    for at, steps in unfinished([{'source': str(source), 'step': step}]).values():
      log.warning(f'{source} stopped at step {at} of {steps}: continue it with the command that began it, then export')
    if form == 'peft':
      from plm_jax.weights import peft

      if part != 'trunk':
        raise ConfigError(f'--part={part}: --form=peft exports a whole run; use --form=release for a part')
      peft.export(source, target, step=step, architecture=arguments.architecture, template=_template(source))
      return 0
    if form == 'own':
      template = _template(source, part)
      export_own(source, target, step=step, part=part, heads=heads or (), template=template, shard=shard)
      _warn_of_vectors(source)
      return 0
    options = {'architecture': arguments.architecture, 'part': part, 'heads': heads}
    export(source, target, step=step, shard=shard, template=_template(source, part), **options)
  return 0


def _template(source: Path, part: str = 'trunk') -> 'Template | None':
  """Return the template around a text in examples of a run."""
  from plm_jax import config
  from plm_jax.config import one_part
  from plm_jax.text import tokenizer
  from plm_jax.training import parts

  folder = run_paths.RunFolder(source)
  if not files.is_file(folder.config) or not tokenizer.exists(folder.vocab):
    return None
  with contextlib.suppress(ConfigError, ValueError):  # a config of an earlier version, or a missing vocabulary
    settings = config.resolve(config.load(str(source)))
    own = part if part in one_part.names(settings) else None
    return parts.make_template(one_part.settings_of(settings, own), tokenizer.load(folder.vocab))
  return None


def _warn_of_vectors(source: Path) -> None:
  """Warn that vectors of GloVe and fastText are not just the table."""
  from plm_jax import config
  from plm_jax.config import build

  task = config.load(str(source)).get('objective') if files.is_file(run_paths.RunFolder(source).config) else None
  if task and getattr(build.import_file(f'objectives.{task["name"]}'), 'word_table', None) is not None:
    log.warning(
      f'only the embedding table is exported, which differs from the vectors of {task["name"]}. To export these: '
      f'plm-jax vectors save --workdir={source} --out=FILE (init_from reads that file)'
    )


# flags that a format does not use
UNUSED = {'import': ('heads', 'form'), 'peft': ('heads', 'shard'), 'own': ('architecture',), 'release': ()}


def _check_flags(arguments: argparse.Namespace, source: Path, *, form: Form) -> None:
  for flag in UNUSED[form]:
    if vars(arguments)[flag] is not None:
      user = 'convert import' if form == 'import' else f'--form={form}'
      raise ConfigError(f'--{flag}={vars(arguments)[flag]}: {user} does not use it: remove --{flag}')
  given = [(flag, value) for flag in ('step', 'part') if (value := vars(arguments)[flag]) is not None]
  if not given or files.is_folder(run_paths.RunFolder(source).checkpoints):
    return
  flag, value = given[0]
  raise ConfigError(f'--{flag}={value}: {source} is not a run with checkpoints: remove --{flag}')


def _check_target(source: Path, target: Path, *, form: Form, force: bool) -> None:
  """Raise ConfigError if the target holds other files."""
  if files.is_file(target):
    raise ConfigError(f'{target} is a file: choose a folder')
  if not files.listing(target):
    return
  index = 'params.index.json'
  patterns = {'import': index, 'own': index, 'release': 'model*.safetensors', 'peft': 'adapter_model.safetensors'}
  pattern = patterns[form]
  if target == source or files.exists(run_paths.RunFolder(target).checkpoints) or not files.listing(target, pattern):
    raise ConfigError(
      f'{target} is not empty and not from convert {"import" if form == "import" else "export"}: choose another folder'
    )
  if not force:
    raise ConfigError(f'{target} is not empty: choose another folder, or add --force to replace its content')
