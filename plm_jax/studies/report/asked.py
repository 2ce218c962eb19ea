"""What a run is asked for a report: what its noise does to a text, what it writes or fills in.

This loads jax and a checkpoint, which takes seconds, so that the answers are kept in the folder of the run
(`samples.json`) until it has other checkpoints or another config.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder

if TYPE_CHECKING:
  from plm_jax.inference.opened import Opened

log = logging.getLogger(__name__)

FORM = 1  # of what is kept; another number asks again
TEXT = (
  'Thank you for inviting me to your party last week. The cake was wonderful, and so were the songs. '
  'We should meet again soon.'
)
OTHER = 'A transformer reads all words of a sentence at once.'  # of another text, for pairs
FEWEST, MOST = 12, 28  # words of a text that is shown
TOKENS = 48  # of it, at most
AROUND = 8  # tokens that stand around a text, or before its blanks
ROWS = 200  # by which rates are measured
FIRST_BLANK, EVERY = 3, 7  # which words are hidden
PROMPT, NEW = 8, 24  # words of a prompt, and tokens that follow it
TOP = 5


def kept(folder: Path) -> dict[str, Any]:
  """The answers that the folder of a run holds; empty where there are none, or only those of another checkpoint."""
  try:
    found = files.read_json(RunFolder(folder).samples, default={})
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) and found.get('of') == _identity(folder) else {}


def ask(folder: Path) -> dict[str, Any]:
  """Asks a run, and keeps the answers in its folder.

  Returns:
    plain data: 'text', and where the run can be asked for it 'noise', 'blanks', 'written'; 'remarks' say why not.
  """
  from plm_jax.inference import opened

  answers: dict[str, Any] = {'of': _identity(folder), 'remarks': []}
  try:
    run = opened.open(folder)
    answers['text'] = _fitting(run, _text(run))
    answers |= _noise(run, answers['text'])
    answers |= _samples(run, answers['text'])
  except (ConfigError, RunError, OSError) as error:
    log.warning('%s: %s', folder, error)
    answers['remarks'].append(str(error))
    return answers  # not kept: what is missing may come
  try:
    files.write_json(RunFolder(folder).samples, answers)
  except OSError as error:
    log.warning('%s is not kept: %s', RunFolder(folder).samples, error.strerror)
  return answers


def _identity(folder: Path) -> str:
  """What the answers of a run depend on: its config and which checkpoints it has."""
  own = RunFolder(folder)
  steps = sorted(one.name for one in files.listing(own.checkpoints) if one.name.isdecimal())
  content = files.read_bytes(own.config) if files.is_file(own.config) else b''
  return hashlib.sha256(json.dumps([FORM, steps, hashlib.sha256(content).hexdigest()]).encode()).hexdigest()


# A text of the run ---------------------------------------------------------------------------------------------------


def _text(run: 'Opened') -> str:
  """The beginning of a document that the run is evaluated on, or trained on; one of ours where its data is not here."""
  settings = run.resolved
  blocks = [one['data'] for one in settings['eval'].values() if one['data']]
  for block in (*blocks, settings['data']):
    if (found := _document(block)) is not None:
      return found
  return TEXT


def _fitting(run: 'Opened', text: str) -> str:
  """The beginning of a text that the positions of a network hold, with its special tokens."""
  words, room = text.split(), min(TOKENS, (run.limit or TOKENS) - AROUND)
  while len(words) > 1 and len(run.vocab.encode(' '.join(words))) > room:
    words.pop()
  return ' '.join(words)


def _document(block: Mapping[str, Any]) -> str | None:
  """The beginning of the first long document of a data block; only small local files are opened for it."""
  from plm_jax.data.corpora import sources

  path = block.get('path')
  if not isinstance(path, str) or ':' in path or not files.exists(files.path(path)):
    return None
  more = {name: block[name] for name in ('text', 'documents', 'max_bytes') if name in block}
  split = block.get('split', 'train')
  try:
    if not sources.opens_quickly(path, split=split):
      return None
    texts = sources.documents(path, split=split, **more)
    for place in range(min(len(texts), 50)):
      words = texts[place].split()
      if len(words) >= FEWEST:
        return ' '.join(words[:MOST])
  except (OSError, ValueError, ImportError) as error:
    log.info('%s is not read: %s', path, error)
  return None


# Noise ---------------------------------------------------------------------------------------------------------------


def _noise(run: 'Opened', text: str) -> dict[str, Any]:
  """What the objective of a run makes of a text; nothing of a run with an adapter."""
  from plm_jax import config
  from plm_jax.config import batch_keys, build
  from plm_jax.core import errors
  from plm_jax.inference import noise_page
  from plm_jax.training import parts

  settings = build.unwrapped(run.resolved)
  if not settings.get('objective'):
    return {}
  made = parts.make_parts(settings, run.vocab, RunFolder(run.folder))
  reads = {batch_keys.name_of(entry) for entry in config.reads(settings)}
  words = run.vocab.encode(text)
  plain = settings['data'].get('layout') == 'stream' or settings['data']['name'] == 'bptt'
  kind: noise_page.Rows = 'pair' if 'first' in reads else 'plain' if plain else 'text'
  batch = noise_page.batch(kind, words, run.vocab, rows=ROWS, other=run.vocab.encode(OTHER))
  if missing := sorted(reads - batch.keys()):
    return {'noise': {'remark': f'The noise of this objective is not shown: it reads {", ".join(missing)} too.'}}
  with errors.stage('objective'):
    example, measured = noise_page.examples(made.task.prepare, batch, seed=settings['seed'], draws=2)
  before = batch.get('tokens')
  lines = [
    {'label': line.label, 'gap': line.gap, 'items': [[list(word) for word in item] for item in line.items]}
    for line in [
      noise_page.Line('text', noise_page.marked(words, run.vocab)),
      *noise_page.lines(example, before, run.vocab),
    ]
  ]
  return {
    'noise': {'objective': settings['objective']['name'], 'lines': lines, 'rates': noise_page.rates(measured, before)}
  }


# Samples -------------------------------------------------------------------------------------------------------------


def _samples(run: 'Opened', text: str) -> dict[str, Any]:
  """Blanks that a run fills and texts that it writes, as far as it can and a checkpoint is there."""
  if not files.listing(RunFolder(run.folder).checkpoints):
    return {}
  from plm_jax.inference import tasks
  from plm_jax.inference.model import load

  able = tasks.abilities(run)
  model = load(run.folder)
  if 'fill' in able:
    return {'blanks': _blanks(model, text)}
  if 'generate' in able:
    return {'written': _written(run, model, text)}
  return {}


def _blanks(model: Any, text: str) -> dict[str, Any]:
  """Words of a text that are hidden, and what stands there for the model."""
  words = text.split()
  hidden = list(range(FIRST_BLANK, len(words), EVERY))
  given = ' '.join('[MASK]' if place in hidden else word for place, word in enumerate(words))
  filled = model.fill(given, top=TOP)
  found = [[[word, round(share, 4)] for word, share in blank] for blank in filled.blanks]
  return {'text': filled.text, 'hidden': [words[place] for place in hidden], 'found': found}


def _written(run: 'Opened', model: Any, text: str) -> dict[str, Any]:
  """What a model writes behind the beginning of a text, or having read all of it: the likeliest, and two draws."""
  words, apart = text.split(), run.kind == 'encoder-decoder'
  begins = len(words) if apart else min(PROMPT, len(words) // 2)
  prompt = ' '.join([*words[:begins], *(['[MASK]'] if run.kind == 'prefix' else [])])
  taken = 0 if apart else len(run.vocab.encode(prompt))  # of the row that is written into
  new = max(1, min(NEW, (run.limit or NEW + TOKENS) - taken - AROUND // 2))
  greedy = model.generate(prompt, max_new=new)
  drawn: Sequence[str] = model.generate(prompt, max_new=new, method='sample', top_p=0.9, num_samples=2)
  texts = [['greedy', greedy], *(['drawn, top_p=0.9', one] for one in drawn)]
  return {'prompt': prompt, 'apart': apart, 'texts': texts}
