"""ROUGE of texts, 0 to 100: F1 of words, of pairs of words and of longest common subsequences (Lin 2004).

The numbers are those of the package rouge-score, averaged over rows; of several references the best one counts for
each of the four. rougeLsum compares sentences, which are separated by newlines, or else end with a mark such as '.'.

`eval.NAME.tokenize`: 'rouge' is the package's, words of a to z with its stemmer; 'letters' takes words of any script;
'characters' also takes each character of scripts without spaces as a word.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from plm_jax.scores import Row, tokens

METRICS = ('rouge1', 'rouge2', 'rougeL', 'rougeLsum')
READS = ('text',)
RECORDS = ('references',)
NEEDS = ('rouge-score',)
BY_ROW = ('rouge1', 'rouge2', 'rougeL', 'rougeLsum')
TOKENIZE = ('rouge', 'letters', 'characters')
_BY_SCRIPT: dict[tokens.Script, str] = {
  'ascii': 'rouge', 'letters': 'letters', 'chinese': 'characters', 'characters': 'characters',
}  # fmt: skip


def chosen(records: Iterable[Row]) -> str:
  """Choose the tokens by the script of the references."""
  return _BY_SCRIPT[tokens.script(tokens.references(records))]


def check(records: Iterable[Row], tokenize: str | None = None) -> None:
  """Raise ValueError for an example whose references have no token."""
  given = tokens.references(records)
  tokenize = tokenize or _BY_SCRIPT[tokens.script(given)]
  tokens.check('rouge', given, _Tokens(tokenize).tokenize, tokenize=tokenize, other='characters')


def score(predictions: Sequence[Row], records: Sequence[Row], tokenize: str = 'rouge') -> dict[str, float]:
  """Compute the four means."""
  from rouge_score.rouge_scorer import RougeScorer

  check(records, tokenize)
  scorer = RougeScorer(METRICS, tokenizer=_Tokens(tokenize))
  totals = dict.fromkeys(METRICS, 0.0)
  for row, record in zip(predictions, records, strict=True):
    measured = scorer.score_multi([in_lines(text) for text in record['references']], in_lines(row['text']))
    for name in METRICS:
      totals[name] += measured[name].fmeasure
  return {name: 100 * total / len(predictions) for name, total in totals.items()}


class _Tokens:
  """A tokenizer as the package takes it."""

  def __init__(self, tokenize: str):
    from rouge_score.tokenizers import DefaultTokenizer

    own: dict[str, Callable[[str], list[str]]] = {'letters': tokens.letters, 'characters': tokens.characters}
    self.tokenize = own.get(tokenize) or DefaultTokenizer(use_stemmer=True).tokenize


def in_lines(text: str) -> str:
  """Put each sentence of a text on a separate line."""
  return text if '\n' in text.strip() else re.sub(r'(?<=[.?!।؟۔])\s+|(?<=[。！？])\s*', '\n', text)
