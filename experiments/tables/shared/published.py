"""Published weights: row -> id under which they are published, and what their folders below --weights hold."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import common

SCALES = ('published',)  # of every file with these rows
# row, which is also the folder unless one is named: (id, model_type)
RELEASED = {
  'bert-base-uncased': ('google-bert/bert-base-uncased', 'bert'),
  'bert-large-uncased': ('google-bert/bert-large-uncased', 'bert'),
  'roberta-base': ('FacebookAI/roberta-base', 'roberta'),
  'roberta-large': ('FacebookAI/roberta-large', 'roberta'),
  'albert-base-v1': ('albert/albert-base-v1', 'albert'),
  'albert-base-v2': ('albert/albert-base-v2', 'albert'),
  'albert-xxlarge-v1': ('albert/albert-xxlarge-v1', 'albert'),
  'albert-xxlarge-v2': ('albert/albert-xxlarge-v2', 'albert'),
  'electra-small-discriminator': ('google/electra-small-discriminator', 'electra'),
  'electra-base-discriminator': ('google/electra-base-discriminator', 'electra'),
  'electra-large-discriminator': ('google/electra-large-discriminator', 'electra'),
  'deberta-base': ('microsoft/deberta-base', 'deberta'),
  'deberta-large': ('microsoft/deberta-large', 'deberta'),
  'deberta-v3-base': ('microsoft/deberta-v3-base', 'deberta-v2'),
  'deberta-v3-large': ('microsoft/deberta-v3-large', 'deberta-v2'),
  'xlnet-large-cased': ('xlnet/xlnet-large-cased', 'xlnet'),
  'distilbert-base-uncased': ('distilbert/distilbert-base-uncased', 'distilbert'),
  'gpt2': ('openai-community/gpt2', 'gpt2'),
  'gpt2-medium': ('openai-community/gpt2-medium', 'gpt2'),
  'gpt2-large': ('openai-community/gpt2-large', 'gpt2'),
  'gpt2-xl': ('openai-community/gpt2-xl', 'gpt2'),
  'llama-7b': ('huggyllama/llama-7b', 'llama'),
  'llama-13b': ('huggyllama/llama-13b', 'llama'),
  'SmolLM2-135M': ('HuggingFaceTB/SmolLM2-135M', 'llama'),
  'SmolLM2-135M-Instruct': ('HuggingFaceTB/SmolLM2-135M-Instruct', 'llama'),
  'bart-large-cnn': ('facebook/bart-large-cnn', 'bart'),
  'bart-large-xsum': ('facebook/bart-large-xsum', 'bart'),
  't5-small': ('google-t5/t5-small', 't5'),
  't5-base': ('google-t5/t5-base', 't5'),
  't5-large': ('google-t5/t5-large', 't5'),
  'elmo': ('allenai/elmo 5.5B original', 'elmo'),
  'all-MiniLM-L6-v2': ('sentence-transformers/all-MiniLM-L6-v2', 'bert'),
  'unsup-simcse-bert-base-uncased': ('princeton-nlp/unsup-simcse-bert-base-uncased', 'bert'),
  'sup-simcse-bert-base-uncased': ('princeton-nlp/sup-simcse-bert-base-uncased', 'bert'),
}
ELMO = 'https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway'
# what else is known of a row
KNOWN = {
  'elmo': dict(
    fetch=f'wget -P {{place}}.files {ELMO}_options.json {ELMO}_weights.hdf5 && '
    'plm-jax convert import {place}.files {place}'
  ),
  'all-MiniLM-L6-v2': dict(folder='minilm', sha256='53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db'),
  'SmolLM2-135M-Instruct-4bit': dict(
    folder='smollm2', id='HuggingFaceTB/SmolLM2-135M-Instruct', model='llama', fetch='bash launch/released.sh'
  ),
}
FOUR_BITS = 'its file holds 4 bits of each number'
NO_PAPER = 'the page does not say which metric of the set it is'


def rows(published: Mapping[str, Mapping[str, Any]], arg: str, **of_all: Any) -> dict[str, dict[str, Any]]:
  """Return the rows of a table.

  Args:
    published: row -> its other fields, such as the numbers in `published`.
    arg: of the table: rows to take, all if none is named, and `quick`, whose losses no number is beside.
    **of_all: fields of all rows.
  """
  for word in common.words(arg):
    if word not in (*published, 'quick'):
      near = difflib.get_close_matches(word, [*published, 'quick'], n=2, cutoff=0.5)
      raise ValueError(f'this table has no row {word!r}. Nearest: {", ".join(near) or ", ".join([*published][:3])}.')
  named = [word for word in common.words(arg) if word != 'quick']
  made = {}
  for name, fields in published.items():
    released = dict(zip(('id', 'model'), RELEASED.get(name, ()), strict=False))
    if name in named or not named:
      made[name] = dict(folder=name) | released | KNOWN.get(name, {}) | of_all | dict(fields)
      made[name] |= dict(published={}, unlike={}) if 'quick' in common.words(arg) else {}
  return made


def column(metric: str, configs: Sequence[str], arg: str = '', *, task: str = '', **fields: Any) -> dict[str, Any]:
  """Return a column whose rows name their config, with a place for the task, as their family.

  With `quick` its configs are the quick ones, whose numbers mean nothing and are losses.
  """
  quick = 'quick' in common.words(arg)
  targets = {config: f'experiments/{config.format(task)}' for config in configs}
  if quick:
    targets = {config: f'{target}{"," if ":" in target else ":"}quick' for config, target in targets.items()}
    kept = {key: fields[key] for key in ('of', 'unlike') if key in fields}
    return dict(metric=f'{metric.partition("/")[0]}/loss', better='min', configs=targets, **kept)
  return dict(metric=metric, configs=targets, **fields)
