"""Noun phrases and names as the words of a text, so that masks cover them whole: SpanBERT, Table 6 (Joshi et al. 2019).

plm-jax train --config=experiments/finetune/tag.py --workdir=runs/tagging/ewt \
    --config.data.path=FOLDER --config.data.fields="('tokens',)" --config.data.label=upos --config.model.from=MODEL
plm-jax train --config=experiments/spanbert/pretrain.py:mlm --workdir=runs/spanbert/nouns \
    --config.objective.where="dict(name='whole_word', rate=0.15)" \
    --config.data.segmenter=launch.phrases:noun_phrases

FOLDER is the English Web Treebank (../shared/data/universal_dependencies_en_ewt), MODEL a folder in Hugging Face's
form, such as runs/released/minilm. The parts of speech that the tagger of the first command gives make the phrases:

  # text           The  old   man  met Anna  Smith .
  # tag            DET  ADJ   NOUN VERB PROPN PROPN PUNCT
  # noun_phrases   [The old man]   [met] [Anna Smith] [.]
  # names          [The] [old] [man] [met] [Anna Smith] [.]

Differs from the paper: it takes phrases and entities of spaCy, with classes of entities that are no names (dates,
numbers), and masks phrases half of the time and single words otherwise; here each phrase counts as one word.
"""

import functools
import re

import plm_jax
from plm_jax.core.errors import ConfigError
from plm_jax.io import files

SEGMENTERS = ('noun_phrases', 'names')
TAGGER = 'runs/tagging/ewt'
LONGEST = 10  # words of a phrase, as those of geometric spans
BATCH = 32  # paragraphs of a text that are tagged at once
# a letter for each part of speech; other parts have 'x'
LETTERS = {'DET': 'd', 'ADJ': 'a', 'NUM': 'a', 'NOUN': 'n', 'PROPN': 'p'}
NOUNS = re.compile('d?a*[np]+')
NAMES = re.compile('p+')


def noun_phrases(text):
  """Return determiners, adjectives and nouns in a row as one word, and other words alone."""
  return phrases(text, NOUNS)


def names(text):
  """Return proper nouns in a row as one word, and other words alone."""
  return phrases(text, NAMES)


def phrases(text, pattern):
  """Return the words of a text, those joined whose parts of speech match a pattern of `LETTERS`."""
  lines = [line for line in text.splitlines() if line.strip()]
  found = []
  for line, words in zip(lines, tagger().tag(lines), strict=True):
    parts = ''.join(LETTERS.get(word['tag'], 'x') for word in words)
    spans = [match.span() for match in pattern.finditer(parts)]
    ends = {place: min(place + LONGEST, end) for start, end in spans for place in range(start, end, LONGEST)}
    place = 0
    while place < len(words):
      stop = ends.get(place, place + 1)
      found.append(line[words[place]['start'] : words[stop - 1]['end']])
      place = stop
  return found


@functools.cache
def tagger():
  """Load the tagger once; raises ConfigError without its run."""
  if not files.is_folder(TAGGER):
    raise ConfigError(f'{TAGGER} does not exist: train the tagger by the first command of launch/phrases.py')
  return plm_jax.load(TAGGER, batch_size=BATCH, dtype='bfloat16')
