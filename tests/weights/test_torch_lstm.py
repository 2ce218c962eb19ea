"""ULMFiT's and CoVe's releases, as LSTMs of PyTorch that are saved under the names of fastai's and CoVe's code."""

import pathlib
import pickle
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import weights
from plm_jax.cli.command import run
from plm_jax.commands import convert
from plm_jax.text import tokenizer

torch = pytest.importorskip('torch')

ITOS = ['_unk_', '_pad_', 'the', 'cat', 'sat', 'xxfake', 'xxfake', 'xbos']
IDS = np.array([[7, 2, 3, 4, 0, 2], [7, 3, 3, 2, 4, 4]])


def command(*words: object) -> int:
  return run(lambda: convert.main(list(map(str, words))))


def write_ulmfit(folder: pathlib.Path, *, later: bool = False, protocol: int = 3) -> Any:
  """Write names of fastai 0.7 (fwd_wt103.h5), or of fastai 1 (lstm_wt103.pth); return the logits of `IDS`."""
  torch.manual_seed(0)
  table, bias = torch.randn(8, 5), torch.randn(8)
  layers = [torch.nn.LSTM(a, b, batch_first=True) for a, b in ((5, 9), (9, 9), (9, 5))]
  state = {'0.encoder.weight': table, '1.decoder.weight': table}
  state |= {'0.encoder_dp.emb.weight' if later else '0.encoder_with_dropout.embed.weight': table}
  state |= {'1.decoder.bias': bias} if later else {}
  x = table[torch.tensor(IDS)]
  for index, layer in enumerate(layers):
    x = layer(x)[0]
    for name, tensor in layer.state_dict().items():
      state[f'0.rnns.{index}.module.{name}'] = tensor
    raw = f'0.rnns.{index}.weight_hh_l0_raw' if later else f'0.rnns.{index}.module.weight_hh_l0_raw'
    state[raw] = state.pop(f'0.rnns.{index}.module.weight_hh_l0')
    if later:  # what dropout left of it
      state[f'0.rnns.{index}.module.weight_hh_l0'] = torch.zeros_like(state[raw])
  folder.mkdir()
  torch.save(state, folder / ('lstm_wt103.pth' if later else 'fwd_wt103.h5'), _use_new_zipfile_serialization=False)
  (folder / 'itos_wt103.pkl').write_bytes(pickle.dumps(ITOS, protocol=protocol))
  return (x @ table.T + (bias if later else 0)).detach().numpy()


@pytest.mark.parametrize('later', [False, True])
def test_ulmfit(later: bool, tmp_path: pathlib.Path) -> None:
  expected = write_ulmfit(tmp_path / 'theirs', later=later)
  assert command('import', tmp_path / 'theirs', tmp_path / 'new') == 0
  trunk, params = weights.load(tmp_path / 'new')
  hidden = trunk.apply({'params': params}, tokens=jnp.array(IDS), segment_ids=jnp.ones_like(IDS))['hidden']
  assert np.abs(trunk.apply({'params': params}, hidden, method='attend') - expected).max() < 2e-6
  vocab = tokenizer.load(tmp_path / 'new' / 'vocab')
  assert vocab.encode('the cat flew') == [2, 3, 0] and vocab.pad_id == 1 and vocab.size == 8


def test_cove(tmp_path: pathlib.Path) -> None:
  torch.manual_seed(0)
  network = torch.nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True)
  (tmp_path / 'theirs').mkdir()
  torch.save(network.state_dict(), tmp_path / 'theirs' / 'wmtlstm-8f474287.pth')
  file = tmp_path / 'theirs' / 'wmtlstm-8f474287.pth'
  assert command('import', file, tmp_path / 'new') == 2  # no word vectors
  (tmp_path / 'theirs' / 'glove.txt').write_text('the 1 2 3 4\ncat .5 -1 0 2\nsat 1 1 -2 0\n')
  assert command('import', file, tmp_path / 'new') == 0
  trunk, params = weights.load(tmp_path / 'new')
  ids = tokenizer.load(tmp_path / 'new' / 'vocab').encode('sat the cat the')
  x = torch.tensor(np.asarray(params['token_embed']['table'])[ids])[None]
  out = trunk.apply({'params': params}, tokens=jnp.array([ids]), segment_ids=jnp.ones((1, 4), int))['hidden']
  assert np.abs(np.asarray(out) - network(x)[0].detach().numpy()).max() < 1e-6


def test_what_is_not_read(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
  folder = tmp_path / 'theirs'
  write_ulmfit(folder)
  itos, state = folder / 'itos_wt103.pkl', folder / 'fwd_wt103.h5'
  content, numbers = itos.read_bytes(), torch.load(state)
  for damage, message in (
    (lambda: itos.unlink(), 'needs one file itos_'),
    (lambda: itos.write_bytes(pickle.dumps([1, 2], protocol=2)), 'is no list of words'),
    (lambda: itos.write_bytes(pickle.dumps(pathlib.Path('x'))), 'is no list of words in pickle protocol 2 or 3'),
    (lambda: itos.write_bytes(content[:9]), 'is no list of words in pickle protocol 2 or 3'),
    (lambda: itos.write_bytes(pickle.dumps(ITOS[:6], protocol=2)), 'has shape'),
    (lambda: torch.save({'x': torch.ones(2)}, state), 'is no network of ULMFiT or CoVe'),
    (
      lambda: torch.save({name: tensor.flatten() for name, tensor in numbers.items()}, state),
      'is no network of ULMFiT',
    ),
    (lambda: torch.save({**numbers, 'x': 3}, state), "has 'x' of type int"),
    (lambda: state.write_bytes(state.read_bytes()[:100]), 'is damaged or cut short'),
  ):
    torch.save(numbers, state)
    itos.write_bytes(content)
    damage()
    assert command('import', folder, tmp_path / 'new') == 2
    last = capfd.readouterr().err.strip().split('\n')[-1]
    assert message in last and len(last.replace(str(tmp_path), '')) <= 240, last
    assert [path.name for path in tmp_path.iterdir()] == ['theirs']
