"""Trial of an untrusted `tokenizer.json` before it is used.

The library that reads it may panic, or use unlimited memory. Most files consist of parts that are known to be harmless.
Every other one is read and used once in a separate process with limits of time and memory. It may still panic on a
later text, if a pattern fails.
"""

import base64
import binascii
import contextlib
import functools
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.core.errors import RunError
from plm_jax.text.spec import MARKS, SEPARATE, Spec, token_ids

SECONDS, BYTES = 30, 4 * 2**30  # of the process
DEPTH, PARTS = 8, 64
# Parts that work on any text with any settings; the settings of other parts are checked.
HARMLESS = (
  'BertNormalizer', 'NFC', 'NFD', 'NFKC', 'NFKD', 'Nmt', 'Lowercase', 'StripAccents', 'ByteLevel', 'BertPreTokenizer',
  'Metaspace', 'Whitespace', 'WhitespaceSplit', 'Punctuation', 'Digits', 'WordPiece', 'BPEDecoder', 'ByteFallback',
  'Fuse', 'Sequence',
)  # fmt: skip
AROUND = ('TemplateProcessing', 'RobertaProcessing', 'BertProcessing', 'ByteLevel', 'Sequence')  # of post-processors
LLAMA3: dict[str, Any] = {
  'type': 'Split',
  'pattern': {
    'Regex': r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r'|\s*[\r\n]+|\s+(?!\S)|\s+'
  },
  'behavior': 'Isolated',
  'invert': False,
}
# regular expressions of published tokenizers, and of `spm.py`
PATTERNS = (' {2,}', r'\A +|[ ▁]+\z', SEPARATE, MARKS, LLAMA3['pattern']['Regex'])
CHARSMAPS = (  # SHA-256 of the tables of SentencePiece: nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf
  '1e2c7b43d3ee9755ceaa2ac335e253d8703604e0249ee1e81156c92b46423844',
  '7e46d9e08af4b6a37991b04fb8388644c1595a0abcd0f26d6a5d575e2a3663ea',
  '2c03512e62f9ed965ec90d85314211b63b5b8aa0395311ea2147eec9ff738907',
  'd8dfef3d6db0eef0742f8b55a73aee7fce6c1e21d26a09b8d3d4b52c42a791cb',
)
TEXTS = ('', 'a', ' the  Old boat, 3.14 (a_b)\n\t', '我 é e\u0301 ½ ﬁ 😀 \u200b\x00', 'ab' * 500, '▁ </s> [MASK] ' * 3)
_CHILD = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
import tokenizers
request = json.loads(sys.stdin.buffer.read())
made = tokenizers.Tokenizer.from_str(request['content'])
for text in request['texts']:
  for specials in (False, True):
    made.decode(made.encode(text, add_special_tokens=specials).ids)
"""


def check(spec: Spec) -> None:
  """Check that the library can read and use a `tokenizer.json`.

  Raises:
    ValueError: it cannot, or the ids of a text vary; the message is one line.
  """
  if spec['model'].get('dropout'):
    raise ValueError(
      f'has model.dropout {spec["model"]["dropout"]!r}, which skips merges at random: set it to null, since a text '
      'must always have the same ids'
    )
  size = len(token_ids(spec))
  for name, token_id in _around(spec):
    if type(token_id) is not int or not 0 <= token_id < size:
      raise ValueError(f'has id {token_id!r} of {name!r} in its post_processor, but its ids end at {size - 1}')
  if not _is_plain(spec) and (reason := _try(json.dumps(spec, ensure_ascii=False))):
    raise ValueError(f'has a tokenizer that cannot be used: {reason}')


@contextlib.contextmanager
def using() -> Iterator[None]:
  """Convert a panic of the library, a tokenizer's error, to RunError."""
  try:
    yield
  except BaseException as error:  # a panic is no Exception, and its class cannot be imported
    if type(error).__name__ != 'PanicException':
      raise
    raise RunError(f'the tokenizer cannot read a text, since one of its patterns gives up: {error}') from error


def _around(spec: Spec) -> Iterator[tuple[Any, Any]]:
  for part in _parts(spec.get('post_processor')):
    yield from (part[key] for key in ('sep', 'cls') if key in part)
    for name, item in (part.get('special_tokens') or {}).items():
      yield from ((name, token_id) for token_id in item['ids'])


def _is_plain(spec: Spec) -> bool:
  """Check that all parts are known to be harmless."""
  model = spec['model']
  # BPE removes a prefix unchecked
  bounded = not model.get('continuing_subword_prefix') or 'max_input_chars_per_word' in model
  parts = [part for key in ('normalizer', 'pre_tokenizer', 'decoder') for part in _parts(spec.get(key))]
  contents = [part.get('content') for part in parts if part.get('type') == 'Replace']
  growth = math.prod(max(1, len(content)) for content in contents if isinstance(content, str))  # of a text's length
  around = all(part.get('type') in AROUND for part in _parts(spec.get('post_processor')))
  return bounded and around and len(parts) <= PARTS and growth <= 64 and all(map(_is_harmless, parts))


def _parts(part: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
  """Yield a part and nested ones; bad ones without a type."""
  if part is None:
    return
  if not isinstance(part, Mapping) or depth > DEPTH:
    yield {}
    return
  yield part
  for key in ('normalizers', 'pretokenizers', 'decoders', 'processors'):
    for inner in part.get(key) or ():
      yield from _parts(inner, depth + 1)


def _is_harmless(part: Mapping[str, Any]) -> bool:
  kind, pattern = part.get('type'), part.get('pattern')
  if kind == 'Strip':
    return max(part.get('start') or 0, part.get('stop') or 0) <= 1
  if kind == 'Prepend':
    return len(part.get('prepend') or '') <= 1
  if kind == 'Precompiled':
    return _charsmap(part.get('precompiled_charsmap')) in CHARSMAPS
  if kind in ('Replace', 'Split'):
    return isinstance(pattern, Mapping) and (bool(pattern.get('String')) or pattern.get('Regex') in PATTERNS)
  return kind in HARMLESS


def _charsmap(text: Any) -> str:
  try:
    return hashlib.sha256(base64.b64decode(text, validate=True)).hexdigest()
  except (TypeError, ValueError, binascii.Error):
    return ''


@functools.lru_cache(maxsize=16)
def _try(content: str) -> str:
  """Use a tokenizer in another process; return its error or ''."""
  request = json.dumps({'content': content, 'texts': TEXTS}).encode()
  try:
    done = subprocess.run(
      [sys.executable, '-I', '-c', _CHILD, str(BYTES)], input=request, capture_output=True, timeout=SECONDS, check=False
    )
  except subprocess.TimeoutExpired:
    return f'the library did not finish in {SECONDS} seconds'
  if done.returncode == 0:
    return ''
  if done.returncode < 0:
    return f'its process was killed (signal {-done.returncode}); the memory limit is {BYTES // 2**30} GiB'
  last = done.stderr.decode(errors='replace').strip().rpartition('\n')[2]
  return last.partition(': ')[2][:200] or last[:200]
