"""`--trace`: what is likely at each step, with the bytes of one character joined."""

import re
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.commands import generate as command
from plm_jax.core.errors import ConfigError
from plm_jax.generate import trace
from plm_jax.text import byte_bpe
from plm_jax.training import loop
from tests import runs, tiny
from tests.generate import peers

SENTENCES = ('今天天气很好', '今天天气不好', '今天天气很热', '我的朋友很好')


def test_the_likeliest_are_those_of_the_softmax():
  trunk = tiny.make_trunk('gpt')
  tokens = jnp.array([[7, 9, 30, 12, 8]])
  params = tiny.draw(shapes_of(trunk, tokens))
  ids, best, taken = map(np.asarray, trace.likeliest(trunk, params, [7, 9], [30, 12, 8], top=4))

  @jax.jit
  def logits_after(count):
    segments = (jnp.arange(5) < count).astype(jnp.int32)[None]  # nothing later is needed
    hidden = trunk.apply({'params': params}, tokens, segment_ids=segments)['hidden'][0, count - 1]
    return trunk.apply({'params': params}, hidden, method='attend')

  for step in range(3):
    logits = np.asarray(logits_after(2 + step), np.float64)
    expected = np.exp(logits) / np.exp(logits).sum()
    assert ids[step].tolist() == np.argsort(-expected)[:4].tolist()
    assert best[step] == pytest.approx(np.sort(expected)[::-1][:4], rel=1e-5)
    assert taken[step] == pytest.approx(expected[int(tokens[0, 2 + step])], rel=1e-5)


def test_the_likeliest_of_an_encoder_decoder_are_those_of_its_decoder():
  trunk, tokens = peers.CASES['bart'].trunk, jnp.array([[7, 9, 30]])
  params = peers.params_of('bart')
  ids, best, taken = map(np.asarray, trace.likeliest(trunk, params, [7, 9, 30], [12, 8], top=3, start=5))
  read = jnp.array([[5, 12]])
  given = {'encoder_tokens': tokens, 'encoder_segment_ids': tokens > 0, 'decoder_tokens': read}
  hidden = trunk.apply({'params': params}, **given, decoder_segment_ids=read > 0)['hidden'][0]
  logits = np.asarray(trunk.apply({'params': params}, hidden, method='attend'), np.float64)
  expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  assert ids.tolist() == np.argsort(-expected)[:, :3].tolist()
  assert taken == pytest.approx(expected[[0, 1], [12, 8]], rel=1e-5)
  assert best[:, 0] == pytest.approx(expected.max(axis=1), rel=1e-5)


def shapes_of(trunk, tokens):
  init = lambda key: trunk.init(key, tokens, segment_ids=tokens)['params']  # noqa: E731
  return nn.unbox(jax.eval_shape(init, jax.random.key(0)))


def test_bytes_wait_for_the_rest_of_their_character():
  first, second, third = (bytes([byte]) for byte in '好'.encode())
  shown, begun = trace.readable(b'', first)
  assert (shown, begun) == ('<E5>', first)
  shown, begun = trace.readable(begun, second)
  assert (shown, begun) == ('<E5 A5>', first + second)
  assert trace.readable(begun, third) == ('好', b'')
  assert trace.readable(begun, third + '很'.encode()[:1]) == ('好<E5>', '很'.encode()[:1])
  assert trace.readable(b'', b' word') == ("' word'", b'')
  assert trace.readable(first, b'a') == ('\ufffda', b'')


def test_the_table_joins_bytes_to_characters():
  vocab = byte_bpe.train(SENTENCES * 2, size=262)
  prompt, made = vocab.encode('今天天气'), vocab.encode('很好')
  assert len(made) > 2  # too small a vocabulary for a token a character
  trunk = tiny.make_trunk('gpt', vocab_size=vocab.size)
  params = tiny.draw(shapes_of(trunk, jnp.array([prompt])))
  model: Any = types.SimpleNamespace(network=(trunk, params), vocab=vocab, kind=trunk.ATTENTION)
  table = command._steps(model, prompt, made, top=3, start=None)
  step, after, taken, *likeliest = [list(column.cells) for column in table.columns]
  assert step == [str(number) for number in range(1, len(made) + 1)]
  assert (after[0], after[-1]) == ('今天天气', '今天天气很')
  shown, chances = zip(*(cell.rsplit(' ', 1) for cell in taken), strict=True)
  assert [text for text in shown if not text.startswith('<')] == ['很', '好']
  assert all(0 < float(chance) < 1 for chance in chances)
  assert len(likeliest) == 3
  for cells in zip(*likeliest, strict=True):
    probabilities = [float(cell.rpartition(' ')[2]) for cell in cells]
    assert probabilities == sorted(probabilities, reverse=True)


@pytest.mark.slow
def test_the_steps_of_a_run(tmp_path, capsys):
  data = runs.write_data(tmp_path / 'data')
  assert loop.train(runs.settings('causal_lm', data, steps=2), tmp_path / 'run').exit_code == 0
  assert command.main([f'--workdir={tmp_path / "run"}', '--prompt=Anna is', '--max_new=4', '--trace=2']) == 0
  rows = [line.strip('│').split('│') for line in capsys.readouterr().out.splitlines() if re.match(r'│ *\d', line)]
  assert [int(row[0]) for row in rows] == [1, 2, 3, 4]
  assert rows[0][1].strip() == 'Anna is'
  assert all(row[2].strip() == row[3].strip() for row in rows)  # greedy takes the likeliest


def test_wrong_numbers_are_refused(tmp_path):
  with pytest.raises(ConfigError, match=r'--trace=0\b'):
    command.main([f'--workdir={tmp_path}', '--prompt=a', '--trace=0'])
