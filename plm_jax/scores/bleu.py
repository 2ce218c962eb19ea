"""BLEU of a corpus, 0 to 100 (Papineni et al. 2002), as the package sacrebleu computes it (Post 2018).

'bleu' is that of WMT, whose signature is nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp; 'bleu_intl' splits words at all
punctuation and symbols of Unicode (tok:intl), as T5's scores do. `eval.NAME.tokenize` sets the tok of 'bleu': by
default zh where the references are Chinese, char for other scripts without spaces, else 13a. 'bleu_intl' is nan for
scripts without spaces.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from plm_jax.core.errors import ConfigError
from plm_jax.scores import Row, tokens

METRICS = ('bleu', 'bleu_intl')
READS = ('text',)
RECORDS = ('references',)
NEEDS = ('sacrebleu',)
TOKENIZE = (
  '13a', 'intl', 'zh', 'char', 'none', 'ja-mecab', 'ko-mecab', 'spm', 'flores101', 'flores200', 'spBLEU-1K'
)  # fmt: skip
_BY_SCRIPT: dict[tokens.Script, str] = {'ascii': '13a', 'letters': '13a', 'chinese': 'zh', 'characters': 'char'}
_INSTALL = {'ja-mecab': 'pip install "sacrebleu[ja]"', 'ko-mecab': 'pip install "sacrebleu[ko]"'}


def chosen(records: Iterable[Row]) -> str:
  """Choose the tokens by the script of the references."""
  return _BY_SCRIPT[tokens.script(tokens.references(records))]


def check(records: Iterable[Row], tokenize: str | None = None) -> None:
  """Raise ValueError for an example whose references have no token."""
  given = tokens.references(records)
  tokenize = tokenize or _BY_SCRIPT[tokens.script(given)]
  split = _splitter(tokenize)
  tokens.check('bleu', given, lambda text: split(text).split(), tokenize=tokenize)


def score(predictions: Sequence[Row], records: Sequence[Row], tokenize: str = '13a') -> dict[str, float]:
  """Compute both numbers; rows with fewer references use those."""
  from sacrebleu.metrics import BLEU

  check(records, tokenize)
  texts = [row['text'] for row in predictions]
  most = max(len(record['references']) for record in records)
  references: Any = [
    [record['references'][index] if index < len(record['references']) else None for record in records]
    for index in range(most)
  ]
  values = [BLEU(tokenize=name).corpus_score(texts, references).score for name in (tokenize, 'intl')]
  if chosen(records) != '13a':  # without spaces a sentence is one word of intl
    values[1] = float('nan')
  return dict(zip(METRICS, values, strict=True))


def _splitter(tokenize: str) -> Callable[[str], str]:
  """Return a tokenizer of sacrebleu; raise ConfigError if not installed."""
  from sacrebleu.metrics import BLEU

  try:
    return BLEU(tokenize=tokenize).tokenizer
  except Exception as error:
    again = f'python -c "from sacrebleu.metrics import BLEU; BLEU(tokenize=\'{tokenize}\')"'
    fix = _INSTALL.get(tokenize, f'pip install sentencepiece, then, connected to the internet, {again}')
    raise ConfigError(f"score 'bleu' cannot use tokenize={tokenize!r} here: {fix}") from error
