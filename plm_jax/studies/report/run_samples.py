"""Compute what a report shows of a run: noise applied to a text, filled blanks, generated texts.

This loads jax and a checkpoint, which takes seconds. The results are stored in the run folder (`samples.json`) until
its checkpoints or its config change.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder

if TYPE_CHECKING:
  from plm_jax.inference.opened import Opened

log = logging.getLogger(__name__)

FORM = 1  # version of the stored file; another one is computed again
TEXT = (
  'Thank you for inviting me to your party last week. The cake was wonderful, and so were the songs. '
  'We should meet again soon.'
)
OTHER = 'A transformer reads all words of a sentence at once.'  # second text, for pairs
FEWEST, MOST = 12, 28  # words of the text
TOKENS = 48  # maximum tokens of the text
AROUND = 8  # special tokens around a text, or before its blanks
ROWS = 200  # sequences over which rates are measured
FIRST_BLANK, EVERY = 3, 7  # hidden words
PROMPT, NEW = 8, 24  # words of a prompt, and new tokens
TOP = 5


def stored(folder: Path) -> dict[str, Any]:
  """Read the stored samples of a run; empty if missing or outdated."""
  try:
    content = checksums.read_sealed(RunFolder(folder).samples, default={})
  except (OSError, ValueError):
    return {}
  return content if content.get('of') == _identity(folder) else {}


def compute(folder: Path) -> dict[str, Any]:
  """Compute samples of a run and store them in its folder.

  Returns JSON data: 'text'; 'noise', 'blanks' and 'written' if the run supports them; 'remarks' with reasons if not.
  """
  from plm_jax.inference import opened

  samples: dict[str, Any] = {'of': _identity(folder), 'remarks': []}
  try:
    run = opened.open(folder)
    samples['text'] = _truncated(run, _text(run))
    samples |= _noise(run, samples['text'])
    samples |= _samples(run, samples['text'])
  except (ConfigError, RunError, OSError) as error:
    log.warning('%s: %s', folder, error)
    samples['remarks'].append(str(error))
    return samples  # not stored: missing files may appear
  try:
    checksums.write_sealed(RunFolder(folder).samples, samples)
  except OSError as error:
    log.warning('%s cannot be stored: %s', RunFolder(folder).samples, error.strerror)
  return samples


def _identity(folder: Path) -> str:
  """Hash the config and the checkpoints of a run."""
  own = RunFolder(folder)
  steps = sorted(path.name for path in files.listing(own.checkpoints) if path.name.isdecimal())
  content = files.read_bytes(own.config) if files.is_file(own.config) else b''
  return hashlib.sha256(json.dumps([FORM, steps, hashlib.sha256(content).hexdigest()]).encode()).hexdigest()


def _text(run: 'Opened') -> str:
  """Return the beginning of a document of local data, else a default."""
  settings = run.resolved
  blocks = [evaluation['data'] for evaluation in settings['eval'].values() if evaluation['data']]
  for block in (*blocks, settings['data']):
    if (document := _document(block)) is not None:
      return document
  return TEXT


def _truncated(run: 'Opened', text: str) -> str:
  """Truncate a text to the positions of the network."""
  words, room = text.split(), min(TOKENS, (run.limit or TOKENS) - AROUND)
  while len(words) > 1 and len(run.vocab.encode(' '.join(words))) > room:
    words.pop()
  return ' '.join(words)


def _document(block: Mapping[str, Any]) -> str | None:
  """Return a small local file's first long document's beginning."""
  from plm_jax.data.corpora import sources

  path = block.get('path')
  if not isinstance(path, str) or ':' in path or not files.exists(files.path(path)):
    return None
  more = {name: block[name] for name in ('text', 'documents', 'max_bytes') if name in block}
  if block.get('fields'):  # of labelled rows, which the run found in the data
    more['text'] = block['fields'][0]
  split = block.get('split', 'train')
  try:
    if not sources.opens_quickly(path, split=split):
      return None
    texts = sources.documents(path, split=split, **more)
    for index in range(min(len(texts), 50)):
      words = texts[index].split()
      if len(words) >= FEWEST:
        return ' '.join(words[:MOST])
  except (OSError, ValueError, ImportError) as error:
    log.info('%s is not read: %s', path, error)
  return None


def _noise(run: 'Opened', text: str) -> dict[str, Any]:
  """Apply the objective's noise to a text; empty for an adapter."""
  from plm_jax import config
  from plm_jax.config import batch_keys, build
  from plm_jax.core import errors
  from plm_jax.inference import noise_page
  from plm_jax.training import parts

  settings = build.unwrapped(run.resolved)
  if not settings.get('objective'):
    return {}
  built = parts.make_parts(settings, run.vocab, RunFolder(run.folder))
  reads = {batch_keys.name_of(entry) for entry in config.reads(settings)}
  words = run.vocab.encode(text)
  plain = settings['data'].get('layout', 'stream') == 'stream'
  kind: noise_page.Rows = 'pair' if 'first' in reads else 'plain' if plain else 'text'
  batch = noise_page.batch(kind, words, run.vocab, rows=ROWS, other=run.vocab.encode(OTHER))
  if missing := sorted(reads - batch.keys()):
    return {'noise': {'remark': f'The noise of this objective is not shown: it also reads {", ".join(missing)}.'}}
  with errors.stage('objective'):
    example, measured = noise_page.examples(built.task.prepare, batch, seed=settings['seed'], draws=2)
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


def _samples(run: 'Opened', text: str) -> dict[str, Any]:
  """Fill blanks or generate texts, if the run can."""
  if not files.listing(RunFolder(run.folder).checkpoints):
    return {}
  from plm_jax.inference import tasks
  from plm_jax.inference.model import load

  abilities = tasks.abilities(run)
  model = load(run.folder)
  if 'fill' in abilities:
    return {'blanks': _blanks(model, text)}
  if 'generate' in abilities:
    return {'written': _written(run, model, text)}
  return {}


def _blanks(model: Any, text: str) -> dict[str, Any]:
  """Hide words of a text and let the model fill them."""
  words = text.split()
  hidden = list(range(FIRST_BLANK, len(words), EVERY))
  masked = ' '.join('[MASK]' if i in hidden else word for i, word in enumerate(words))
  filled = model.fill(masked, top=TOP)
  candidates = [[[word, round(share, 4)] for word, share in blank] for blank in filled.blanks]
  return {'text': filled.text, 'hidden': [words[i] for i in hidden], 'found': candidates}


def _written(run: 'Opened', model: Any, text: str) -> dict[str, Any]:
  """Continue a text, or its beginning: one greedy, two sampled texts."""
  words, apart = text.split(), run.kind == 'encoder-decoder'
  prompt_words = len(words) if apart else min(PROMPT, len(words) // 2)
  prompt = ' '.join([*words[:prompt_words], *(['[MASK]'] if run.kind == 'prefix' else [])])
  prompt_tokens = 0 if apart else len(run.vocab.encode(prompt))
  new = max(1, min(NEW, (run.limit or NEW + TOKENS) - prompt_tokens - AROUND // 2))
  greedy = model.generate(prompt, max_new=new)
  sampled: Sequence[str] = model.generate(prompt, max_new=new, method='sample', top_p=0.9, num_samples=2)
  texts = [['greedy', greedy], *(['sampled, top_p=0.9', text] for text in sampled)]
  return {'prompt': prompt, 'apart': apart, 'texts': texts}
