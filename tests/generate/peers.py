"""Generation by Hugging Face with the same weights, and what it made, stored.

`python -m tests.generate.peers [CASE ...]` computes `references.json` anew; it needs torch and transformers, reading it
does not. The peers run in float64. Weights depend on the path and shape of a parameter alone.
"""

import functools
import json
import pathlib
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from plm_jax import weights
from plm_jax.core.types import PyTree
from plm_jax.generate import generate
from plm_jax.models import bart, gpt, llama, t5
from plm_jax.weights import shapes

REFERENCES = pathlib.Path(__file__).parent / 'references.json'
VOCAB = 61
START = 3  # of decoders
SIZES = {'hidden_dim': 16, 'num_layers': 2, 'num_heads': 2, 'mlp_dim': 40}
LENGTHS = (6, 1, 4)  # of the prompts of a batch
NEW = 12


class Case(NamedTuple):
  """A trunk, the architecture under whose names it is written, and a token that ends some of its texts."""

  trunk: nn.Module
  architecture: str
  eos_id: int

  @property
  def is_seq2seq(self) -> bool:
    return self.trunk.ATTENTION == 'encoder-decoder'


def _make(module: Any, variant: str, **fields: Any) -> nn.Module:
  return module.make(vocab_size=VOCAB, variant=variant, overrides=SIZES | fields)


CASES = {
  'gpt2': Case(_make(gpt, 'gpt2', max_length=32), 'gpt', 16),
  'llama': Case(_make(llama, 'llama2-70b', num_kv_heads=1), 'llama', 60),
  'glm4': Case(_make(llama, 'glm-4-9b-0414', num_kv_heads=1), 'glm4', 33),
  # texts longer than the window; norms of queries and keys; scaled embeddings; a layer without positions
  'mistral': Case(_make(llama, 'mistral-7b', num_kv_heads=1, window=4), 'llama_relatives', 60),
  'qwen2': Case(_make(llama, 'qwen2-0.5b', num_kv_heads=1), 'llama_relatives', 60),
  'qwen3': Case(_make(llama, 'qwen3-0.6b', num_kv_heads=1, head_dim=8), 'llama_relatives', 60),
  'gemma': Case(_make(llama, 'gemma-2b', head_dim=12), 'llama_relatives', 60),
  'olmo2': Case(_make(llama, 'olmo2-7b'), 'llama_relatives', 60),
  'smollm3': Case(_make(llama, 'smollm3-3b', num_kv_heads=1, unrotated=(1,)), 'llama_relatives', 60),
  'pythia': Case(_make(llama, 'pythia-70m', rotary_share=0.5), 'gpt_neox', 60),
  'opt': Case(_make(gpt, 'opt-350m', embed_dim=10, max_length=32), 'opt', 60),
  't5': Case(_make(t5, 't5-small', head_dim=8, num_buckets=8, max_distance=11), 't5', 10),
  'bart': Case(_make(bart, 'bart-base', max_length=32), 'bart', 45),
  'llama3': Case(
    _make(llama, 'llama3.2-1b', num_kv_heads=1, head_dim=12, rotary_base=50.0, max_length=40, rotary_length=20),
    'llama',
    46,
  ),
  'distilbart': Case(_make(bart, 'bart-base', max_length=32, num_decoder_layers=1), 'bart', 26),
  'mbart': Case(_make(bart, 'mbart-large-cc25', max_length=32), 'mbart', 45),
  'byt5': Case(_make(t5, 'byt5-small', head_dim=8, num_decoder_layers=1), 't5', 10),
  'mt5': Case(_make(t5, 'mt5-small', head_dim=8), 'mt5', 10),
}

# whose block is that of another case: fewer settings
RELATIVES = ('mistral', 'qwen2', 'qwen3', 'gemma', 'olmo2', 'smollm3', 'pythia', 'opt')

# what both sides are given, by our names; 'eos' stands for the token of the case
GREEDY: Mapping[str, Mapping[str, Any]] = {
  'greedy': {},
  'end': {'eos': True},
  'least': {'eos': True, 'min_new': 8},
  'no pair twice': {'no_repeat': 2},
  'no three twice': {'no_repeat': 3, 'eos': True, 'min_new': 5},
  'last': {'last_id': 9},
}
BEAM: Mapping[str, Mapping[str, Any]] = {
  'two': {'beams': 2, 'eos': True},
  'five': {'beams': 5, 'eos': True},
  'one': {'beams': 1, 'eos': True},
  'no end': {'beams': 3},
  'long': {'beams': 3, 'eos': True, 'length_penalty': 2.0},
  'short': {'beams': 3, 'eos': True, 'length_penalty': -1.0},
  'no penalty': {'beams': 4, 'eos': True, 'length_penalty': 0.0},
  'early': {'beams': 4, 'eos': True, 'early_stop': True},
  'never': {'beams': 4, 'eos': True, 'early_stop': 'never', 'length_penalty': 1.5},
  'never short': {'beams': 4, 'eos': True, 'early_stop': 'never', 'length_penalty': -0.5},
  'everything': {'beams': 4, 'eos': True, 'min_new': 4, 'no_repeat': 2, 'last_id': 9, 'length_penalty': 0.6},
}
SETTINGS = {name: {'method': 'greedy', **values} for name, values in GREEDY.items()} | {
  f'beam {name}': {'method': 'beam', **values} for name, values in BEAM.items()
}
STORED = {
  'gpt2': ('greedy', 'no three twice', 'beam five', 'beam everything'),
  'llama': ('beam early',),
  'glm4': ('least',),
  't5': ('beam never',),
  'bart': ('beam everything',),
  'llama3': ('greedy',),
  'distilbart': ('end',),
  'mbart': ('beam five',),
  'mt5': ('beam everything',),
}
# theirs forces a first token only where the text begins at once
FORCED = {'first': {'method': 'greedy', 'first_id': 7}, 'beam first': {'method': 'beam', 'beams': 3, 'first_id': 7}}


def settings(case: Case, name: str) -> dict[str, Any]:
  """Arguments of `generate`."""
  values = dict((SETTINGS | FORCED)[name])
  return values | ({'eos_id': case.eos_id} if values.pop('eos', False) else {})


def draw_params(trunk: nn.Module) -> PyTree:
  """Parameters large enough that texts vary."""
  params: dict[str, Any] = {}
  for path, shape in shapes.shapes(trunk).items():
    *parents, name = path.split('/')
    values = np.random.Generator(np.random.PCG64([*map(ord, path)])).random(shape) * 2 - 1
    node = params
    for parent in parents:
      node = node.setdefault(parent, {})
    kernel = 0.5 if 'cross' in parents else 1.2
    # rows of one norm, lest a few words win everywhere
    draws = {'scale': 1 + 0.3 * values, 'bias': 0.1 * values, 'table': 0.6 * np.sign(values)}
    values = draws.get(name, kernel * values)
    if path in ('token_embed/table', 'output/table'):
      values[0] = 0  # padding, which theirs counts among the tokens that may not come again
    node[name] = values.astype(np.float32)
  return params


@functools.cache
def params_of(name: str) -> PyTree:
  return jax.device_put(draw_params(CASES[name].trunk))


def prompts(*, left: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """Tokens and segments int[3, 6] of prompts of unequal lengths."""
  real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
  real = real[:, ::-1] if left else real
  tokens = np.zeros(real.shape, np.int32)
  tokens[real] = np.random.default_rng(seed).integers(4, VOCAB, sum(LENGTHS))
  return tokens, real.astype(np.int32)


def run_ours(name: str, setting: str, *, left: bool = False) -> tuple[list[list[int]], list[float]]:
  """(the tokens of each row, up to and with the end; their scores)."""
  case = CASES[name]
  tokens, segments = prompts(left=left)
  start = {'start_id': START} if case.is_seq2seq else {}
  arguments = {'segment_ids': segments, 'max_new': NEW, **start, **settings(case, setting)}
  made = generate(case.trunk, params_of(name), tokens, **arguments)
  texts = [row[:size] for row, size in zip(np.asarray(made.tokens).tolist(), made.lengths.tolist(), strict=True)]
  assert all(not any(row[size:]) for row, size in zip(made.tokens.tolist(), made.lengths.tolist(), strict=True))
  return texts, made.scores.tolist()


@functools.cache
def peer(name: str) -> Any:
  """Their model with the same weights."""
  import transformers

  case = CASES[name]
  family = transformers.AutoModelForSeq2SeqLM if case.is_seq2seq else transformers.AutoModelForCausalLM
  with tempfile.TemporaryDirectory() as folder:
    weights.save(folder, case.trunk, draw_params(case.trunk), architecture=case.architecture)
    return family.from_pretrained(folder, attn_implementation='sdpa').double().eval()


def run_theirs(name: str, setting: str) -> tuple[list[list[int]], list[float]]:
  """What `run_ours` returns; a greedy text has no score."""
  import torch
  import transformers

  case, model = CASES[name], peer(name)
  ours = settings(case, setting)
  is_beam = ours.pop('method') == 'beam'
  theirs = {
    'eos_id': 'eos_token_id',
    'min_new': 'min_new_tokens',
    'no_repeat': 'no_repeat_ngram_size',
    'first_id': 'forced_bos_token_id',
    'last_id': 'forced_eos_token_id',
    'beams': 'num_beams',
    'length_penalty': 'length_penalty',
    'early_stop': 'early_stopping',
  }
  start = {'decoder_start_token_id': START} if case.is_seq2seq else {}
  model.generation_config = transformers.GenerationConfig(
    max_new_tokens=NEW,
    pad_token_id=0,
    return_dict_in_generate=True,
    output_scores=True,
    **start,
    **{theirs[key]: value for key, value in ours.items()},
  )
  tokens, segments = (torch.tensor(x).long() for x in prompts(left=not case.is_seq2seq))
  with torch.inference_mode():
    out = model.generate(tokens, attention_mask=segments)
  made = out.sequences[:, 1 if case.is_seq2seq else tokens.shape[1] :].tolist()
  texts = []
  for row in made:
    end = row.index(ours['eos_id']) + 1 if ours.get('eos_id') in row else len(row)
    texts.append(row[:end])
  scores = out.sequences_scores.tolist() if is_beam and ours['beams'] > 1 else []
  return texts, scores


def stored() -> dict[str, Any]:
  """{'<case>: <setting>': {'texts', 'scores'}}."""
  return json.loads(REFERENCES.read_text(encoding='utf-8'))


def main() -> None:
  names = sys.argv[1:] or list(STORED)
  made = {key: value for key, value in stored().items() if key.partition(':')[0] not in names}
  for name in names:
    for setting in STORED[name]:
      texts, scores = run_theirs(name, setting)
      made[f'{name}: {setting}'] = {'texts': texts, 'scores': [round(score, 6) for score in scores]}
  lines = ',\n'.join(f'  {json.dumps(key)}: {json.dumps(value)}' for key, value in made.items())
  REFERENCES.write_text(f'{{\n{lines}\n}}\n', encoding='utf-8')
  print(f'{REFERENCES.name}: {REFERENCES.stat().st_size:,} bytes')


if __name__ == '__main__':
  main()
