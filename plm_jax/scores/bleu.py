"""BLEU of a corpus, 0 to 100 (Papineni et al. 2002), as the package sacrebleu computes it (Post 2018).

'bleu' is that of WMT, whose signature is nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp; 'bleu_intl' splits words at all
punctuation and symbols of Unicode (tok:intl), as T5's scores do.
"""

from collections.abc import Sequence
from typing import Any

from plm_jax.scores import Row

METRICS = ('bleu', 'bleu_intl')
READS = ('text',)
RECORDS = ('references',)
NEEDS = ('sacrebleu',)


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute both numbers.

  A row with fewer references than others is compared with those that it has.
  """
  from sacrebleu.metrics import BLEU

  texts = [row['text'] for row in predictions]
  most = max(len(record['references']) for record in records)
  references: Any = [
    [record['references'][index] if index < len(record['references']) else None for record in records]
    for index in range(most)
  ]
  return {
    name: BLEU(tokenize=tokenizer).corpus_score(texts, references).score
    for name, tokenizer in zip(METRICS, ('13a', 'intl'), strict=True)
  }
