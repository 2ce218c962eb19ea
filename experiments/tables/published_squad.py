"""SQuAD 1.1 and 2.0, development sets, from published weights: BERT, RoBERTa, ALBERT, ELECTRA, DeBERTa, XLNet.

plm-jax tables experiments/tables/published_squad.py --scale=published --weights=DIR --workdir=runs/tables --print
plm-jax tables experiments/tables/published_squad.py:roberta-large --scale=published --weights=DIR --workdir=runs/tables

Words after the colon: rows, and `quick`. Three seeds of each cell with the settings of the paper, on an accelerator.
Sources: BERT, Tables 2 and 3 as the head of bert/squad.py has them (its 90.9/84.1 also in the README of ALBERT);
otherwise the READMEs of fairseq, ALBERT, ELECTRA, DeBERTa and XLNet.
"""

from experiments import common
from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

SIZES = {'1.1': 87_599 + 10_570, '2.0': 130_319 + 11_873}
_ = None
# row: configs of 1.1 and 2.0; source and its mark; 1.1 exact match and F1, 2.0 exact match and F1
ROWS = {
  'bert-base-uncased': (('bert/squad.py', 'bert/squad.py:v2'), 'C', 'Devlin et al. 2019, Table 2', (80.8, 88.5, _, _)),
  'bert-large-uncased': (
    ('bert/squad.py:large', 'bert/squad.py:v2,large'), 'C', 'Devlin et al. 2019, Tables 2, 3', (84.1, 90.9, 78.7, 81.9),
  ),
  'distilbert-base-uncased': (
    ('bert/squad.py', 'bert/squad.py:v2'), 'D', 'Sanh et al. 2019, Table 2', (77.7, 85.8, _, _),
  ),
  'roberta-large': (
    ('roberta/reading.py:squad1,large', 'roberta/reading.py:squad2,large'), 'A', 'README of fairseq',
    (88.9, 94.6, 86.5, 89.4),
  ),
  'albert-base-v2': (
    ('albert/fine_tune.py:squad1,base', 'albert/fine_tune.py:squad2,base'), 'A', 'README of ALBERT',
    (83.2, 90.2, 79.3, 82.1),
  ),
  'albert-xxlarge-v2': (
    ('albert/fine_tune.py:squad1,xxlarge', 'albert/fine_tune.py:squad2,xxlarge'), 'A', 'README of ALBERT',
    (89.1, 94.6, 86.9, 89.8),
  ),
  'electra-small-discriminator': (
    ('electra/squad.py:v1,small', 'electra/squad.py:v2,small'), 'A', 'README of ELECTRA', (75.8, _, 70.1, _),
  ),
  'electra-base-discriminator': (
    ('electra/squad.py:v1,base', 'electra/squad.py:v2,base'), 'A', 'README of ELECTRA', (86.8, _, 80.5, _),
  ),
  'electra-large-discriminator': (
    ('electra/squad.py:v1,large', 'electra/squad.py:v2,large'), 'A', 'README of ELECTRA', (89.7, _, 88.1, _),
  ),
  'deberta-large': (
    ('deberta/reading.py:squad1,large', 'deberta/reading.py:squad2,large'), 'A', 'README of DeBERTa',
    (90.1, 95.5, 88.0, 90.7),
  ),
  'xlnet-large-cased': (
    ('xlnet/squad.py:v1,large', 'xlnet/squad.py:v2,large'), 'A', 'README of XLNet', (88.95, _, 86.12, _),
  ),
}  # fmt: skip


def get_table(scale, arg=''):
  """Takes the scale; `arg` rows and `quick`."""
  columns = {}
  for index, (version, whole) in enumerate(SIZES.items()):
    for name, metric in (('EM', 'exact_match'), ('F1', 'f1')):
      configs = dict.fromkeys(both[index] for both, *_ in ROWS.values())
      made = published.column(f'validation/{metric}', configs, arg, whole=whole, folder='' if index else 'squad')
      # the family of a row is its config of 1.1
      made['configs'] = {both[0]: made['configs'][both[index]] for both, *_ in ROWS.values()}
      columns[f'SQuAD {version} {name}'] = made
  rows = {}
  for name, (both, mark, quoted, numbers) in ROWS.items():
    given = {column: number for column, number in zip(columns, numbers, strict=True) if number is not None}
    rows[name] = dict(family=both[0], mark=mark, quoted=quoted, published=given)
  return dict(
    title='SQuAD 1.1 and 2.0, development sets, from published weights',
    paper='Single models without other training data',
    mark='A',
    rows=published.rows(rows, arg),
    columns=columns,
    tuning_seeds=1 if 'quick' in common.words(arg) else 3,
  )
