"""Texts in and out of real weights: vectors, continuations token for token, log-probabilities."""

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


def test_generate_token_for_token(smollm2: Any) -> None:
  import torch

  ours = smollm2.model.generate(PROMPTS, max_new=20)
  assert ours[0].startswith(' Paris')
  for prompt, text in zip(PROMPTS, ours, strict=True):
    read = smollm2.tokenizer(prompt, return_tensors='pt')
    with torch.inference_mode():
      row = smollm2.theirs.generate(**read, max_new_tokens=20, do_sample=False)[0]
    assert text == smollm2.tokenizer.decode(row[read['input_ids'].shape[1] :], skip_special_tokens=True), prompt


def test_score_is_the_sum_of_log_probabilities(smollm2: Any) -> None:
  import torch

  texts = [f'The capital of France is {city}.' for city in ('Paris', 'Berlin')]
  ours = smollm2.model.score(texts)
  for text, scored in zip(texts, ours, strict=True):
    ids = smollm2.tokenizer(text, return_tensors='pt')['input_ids']
    with torch.inference_mode():
      nats = torch.log_softmax(smollm2.theirs(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None]).sum().item()
    assert scored.tokens == ids.shape[1] - 1
    assert scored.log_probability == pytest.approx(nats, abs=2e-4)
  assert ours[0].log_probability - ours[1].log_probability > 6
