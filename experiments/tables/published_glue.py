"""GLUE, development sets, from published weights: BERT, RoBERTa, ALBERT, ELECTRA, DeBERTa, XLNet, DistilBERT.

plm-jax tables experiments/tables/published_glue.py --scale=published --weights=DIR --workdir=runs/tables --print
plm-jax tables experiments/tables/published_glue.py:roberta-base --scale=published --weights=DIR --workdir=runs/tables

DIR has the folders that --print lists, with the command that fetches each. Words after the colon: rows, and `quick`,
which tries 20 updates on the embedded corpus. Five seeds of each cell, settings of the paper, on an accelerator.
Sources: BERT, Tables 5 and 6 of the paper as other papers quote them; READMEs of fairseq (RoBERTa), ALBERT, ELECTRA,
DeBERTa and of XLNet (BERT-large and XLNet-large, first version of the paper), and the one of DistilBERT.
"""

from experiments import common
from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

# column: task, metric, examples of training and development sets, folder below --data
COLUMNS = {
  'CoLA': ('cola', 'validation/matthews', 8_551 + 1_043, 'glue_cola'),
  'SST-2': ('sst2', 'validation/accuracy', 67_349 + 872, 'glue_sst2'),
  'MRPC': ('mrpc', 'validation/accuracy', 3_668 + 408, 'glue_mrpc'),
  'STS-B Pearson': ('stsb', 'validation/pearson', 5_749 + 1_500, 'glue_stsb'),
  'STS-B Spearman': ('stsb', 'validation/spearman', 5_749 + 1_500, 'glue_stsb'),
  'QQP': ('qqp', 'validation/accuracy', 363_846 + 40_430, ''),
  'MNLI-m': ('mnli', 'validation_matched/accuracy', 392_702 + 9_815, 'glue_mnli'),
  'QNLI': ('qnli', 'validation/accuracy', 104_743 + 5_463, ''),
  'RTE': ('rte', 'validation/accuracy', 2_490 + 277, 'glue_rte'),
}
_ = None
# row: config; source and its mark; numbers in the order of the columns
ROWS = {
  'bert-base-uncased': ('bert/glue.py:{}', 'C', 'Devlin et al. 2019, Table 5', (_, 92.7, 86.7, _, _, _, 84.4, 88.4, _)),
  'bert-large-uncased': (
    'bert/glue.py:{},large', 'A', 'README of XLNet', (60.6, 93.2, 88.0, 90.0, _, 91.3, 86.6, 92.3, 70.4),
  ),
  'distilbert-base-uncased': (
    'bert/glue.py:{}', 'A', 'README of DistilBERT', (51.3, 91.3, 87.5, 86.9, _, 88.5, 82.1, 89.2, 59.9),
  ),
  'roberta-base': (
    'roberta/glue.py:{},base', 'A', 'README of fairseq', (63.6, 94.8, 90.2, 91.2, _, 91.9, 87.6, 92.8, 78.7),
  ),
  'roberta-large': (
    'roberta/glue.py:{},large', 'A', 'README of fairseq', (68.0, 96.4, 90.9, 92.4, _, 92.2, 90.2, 94.7, 86.6),
  ),
  'albert-base-v1': ('albert/fine_tune.py:{},base', 'A', 'README of ALBERT', (_, 90.3, _, _, _, _, 81.6, _, _)),
  'albert-base-v2': ('albert/fine_tune.py:{},base', 'A', 'README of ALBERT', (_, 92.9, _, _, _, _, 84.6, _, _)),
  'albert-xxlarge-v1': (
    'albert/fine_tune.py:{},xxlarge', 'A', 'README of ALBERT', (71.4, 96.9, 90.9, 93.0, _, 92.2, 90.8, 95.3, 89.2),
  ),
  'electra-small-discriminator': (
    'electra/glue.py:{},small', 'A', 'README of ELECTRA', (57.0, 91.2, 88.0, _, 87.5, 89.0, 81.3, 88.4, 66.7),
  ),
  'electra-base-discriminator': (
    'electra/glue.py:{},base', 'A', 'README of ELECTRA', (67.7, 95.1, 89.5, _, 91.2, 91.5, 88.8, 93.2, 82.7),
  ),
  'electra-large-discriminator': (
    'electra/glue.py:{},large', 'A', 'README of ELECTRA', (69.1, 96.9, 90.8, _, 92.6, 92.4, 90.9, 95.0, 88.0),
  ),
  'deberta-base': ('deberta/glue.py:{},base', 'A', 'README of DeBERTa', (_, _, _, _, _, _, 88.8, _, _)),
  'deberta-large': (
    'deberta/glue.py:{},large', 'A', 'README of DeBERTa', (69.5, 96.5, 92.6, 92.8, 92.5, 92.3, 91.3, 95.3, 91.0),
  ),
  'deberta-v3-base': ('deberta/glue.py:{},v3-base', 'A', 'README of DeBERTa', (_, _, _, _, _, _, 90.6, _, _)),
  'deberta-v3-large': (
    'deberta/glue.py:{},v3-large', 'A', 'README of DeBERTa', (75.3, 96.9, 92.2, 93.0, _, 93.0, 91.8, 96.0, 92.7),
  ),
  'xlnet-large-cased': (
    'xlnet/fine_tune.py:{},large', 'A', 'README of XLNet', (63.6, 95.6, 89.2, 91.8, _, 91.8, 89.8, 93.9, 83.8),
  ),
}  # fmt: skip
# numbers that this file cannot meet
AFTER_MNLI = 'its source begins with what MNLI learnt'
UNLIKE = {
  'distilbert-base-uncased': dict.fromkeys(('MRPC', 'QQP', 'STS-B Pearson'), published.NO_PAPER),
  **{name: dict.fromkeys(('RTE', 'STS-B Spearman'), AFTER_MNLI) for name in ROWS if name.startswith('electra')},
  **{name: dict.fromkeys(('RTE', 'STS-B Pearson', 'STS-B Spearman', 'MRPC'), AFTER_MNLI)
     for name in ROWS if (name.endswith('large') and name.startswith('deberta')) or name.startswith('albert-xxl')},
}  # fmt: skip


def get_table(scale, arg=''):
  """Takes the scale; `arg` rows and `quick`."""
  quick = 'quick' in common.words(arg)
  rows = {}
  for name, (config, mark, quoted, numbers) in ROWS.items():
    given = {column: number for column, number in zip(COLUMNS, numbers, strict=True) if number is not None}
    unlike = {column: reason for column, reason in UNLIKE.get(name, {}).items() if column in given}
    rows[name] = dict(family=config, mark=mark, quoted=quoted, published=given, unlike=unlike)
    rows[name]['without'] = {column: 'its source has no number' for column in COLUMNS if column not in given}
  configs = dict.fromkeys(config for config, *_ in ROWS.values())
  columns = {
    name: published.column(metric, configs, arg, task=task, whole=whole, folder=folder, times=100)
    for name, (task, metric, whole, folder) in COLUMNS.items()
  }
  return dict(
    title='GLUE, development sets, from published weights',
    paper='One task after the other, without an ensemble; MRPC and QQP accuracy, CoLA MCC',
    mark='A',
    rows=published.rows(rows, arg),
    columns=columns,
    tuning_seeds=1 if quick else 5,
    summary='mean' if quick else 'median',
    note='With quick nothing is learned, and losses of 64 functions of the embedded corpus are shown.' if quick else '',
  )
