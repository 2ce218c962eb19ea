"""Texts in and out of real weights: vectors, continuations token for token, log-probabilities."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.released

TEXTS = ['A man is playing a flute.', 'Paris', 'Someone plays an instrument, ' * 60]  # the last exceeds 256 tokens
PROMPTS = ['The capital of France is', 'Once upon a time, in a small village', 'def add(a, b):', '2 + 2 =']


def test_encode_is_mean_pooling_and_normalisation(minilm: Any) -> None:
  import torch

  ours = minilm.model.encode(TEXTS)
  for text, vector in zip(TEXTS, ours, strict=True):
    read = minilm.tokenizer(text, truncation=True, max_length=256, return_tensors='pt')
    with torch.inference_mode():
      mean = minilm.theirs(**read).last_hidden_state[0].mean(0).numpy()
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=0, atol=1e-6)


def test_encode_does_not_depend_on_the_batch(minilm: Any) -> None:
  together = minilm.model.encode(TEXTS)
  for text, vector in zip(TEXTS, together, strict=True):
    np.testing.assert_allclose(minilm.model.encode(text), vector, rtol=0, atol=1e-6)


# in a process of its own: the flags under which tests compile make products of one row a hundred times as slow
WRITE = """
import json, sys, plm_jax
model = plm_jax.load(sys.argv[1])
prompts, texts = json.loads(sys.argv[2])
print(json.dumps([model.generate(prompts, max_new=12), model.score(texts)]))
"""


def test_smollm2_writes_and_scores_as_transformers(smollm2: Any) -> None:
  import torch

  texts = [f'The capital of France is {city}.' for city in ('Paris', 'Berlin')]
  words = [sys.executable, '-c', WRITE, str(smollm2.folder), json.dumps([PROMPTS, texts])]
  child = subprocess.run(words, env={**os.environ, 'XLA_FLAGS': ''}, capture_output=True, text=True, check=False)
  assert child.returncode == 0, child.stderr
  written, scores = json.loads(child.stdout.splitlines()[-1])
  assert written[0].startswith(' Paris')
  read = smollm2.tokenizer(PROMPTS, return_tensors='pt', padding=True, padding_side='left')
  with torch.inference_mode():
    rows = smollm2.theirs.generate(**read, max_new_tokens=12, do_sample=False)[:, read['input_ids'].shape[1] :]
  assert written == smollm2.tokenizer.batch_decode(rows, skip_special_tokens=True)
  for text, (log_probability, tokens) in zip(texts, scores, strict=True):
    ids = smollm2.tokenizer(text, return_tensors='pt')['input_ids']
    with torch.inference_mode():
      nats = torch.log_softmax(smollm2.theirs(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None]).sum().item()
    assert tokens == ids.shape[1] - 1
    assert log_probability == pytest.approx(nats, abs=2e-4)
  assert scores[0][0] - scores[1][0] > 6
