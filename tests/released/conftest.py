"""Real weights, loaded once a session: ours and transformers' from the same folders."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
import pytest

import plm_jax
from plm_jax import weights
from plm_jax.core.types import PyTree
from plm_jax.inference.model import Model


class Pair(NamedTuple):
  """One folder, opened by both sides.

  Attributes:
    folder: its path.
    model: ours, to be called with texts.
    trunk: our network without a head.
    params: its parameters.
    theirs: the class of transformers, in double precision, so that the difference is our own rounding.
    tokenizer: theirs.
  """

  folder: pathlib.Path
  model: Model
  trunk: nn.Module
  params: PyTree
  theirs: Any
  tokenizer: Any

  def rows(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and segments int32[b, l] of their tokenizer, padded on the right."""
    rows = [self.tokenizer(text)['input_ids'] for text in texts]
    segments = (np.arange(max(map(len, rows))) < np.array([len(row) for row in rows])[:, None]).astype(np.int32)
    tokens = np.zeros_like(segments)
    tokens[segments > 0] = np.concatenate(rows)
    return tokens, segments


def _open(folder: pathlib.Path, auto: str) -> Pair:
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  torch.set_num_threads(1)  # more threads wait for each other by spinning where other tests run
  theirs = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float64).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  return Pair(folder, plm_jax.load(folder), *weights.load(folder), theirs, tokenizer)


@pytest.fixture(scope='session')
def minilm(released: Callable[[str], pathlib.Path]) -> Pair:
  """all-MiniLM-L6-v2."""
  return _open(released('minilm'), 'AutoModel')


@pytest.fixture(scope='session')
def smollm2(released: Callable[[str], pathlib.Path]) -> Pair:
  """SmolLM2-135M-Instruct, of 4 bits."""
  return _open(released('smollm2'), 'AutoModelForCausalLM')
