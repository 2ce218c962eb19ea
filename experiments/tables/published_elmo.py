"""ELMo, Table 1, from published weights: names, entailment, answers in a text (Peters et al. 2018, §4).

plm-jax tables experiments/tables/published_elmo.py --scale=published --weights=DIR --workdir=runs/tables --print
plm-jax tables experiments/tables/published_elmo.py --scale=published --weights=DIR --workdir=runs/tables

DIR/elmo is the import that the command of --print makes of *options.json and *.hdf5. The networks on top of ELMo are
simpler than those of the paper (elmo/tagging.py, elmo/pairs.py), so that no number is compared.
Sources: the heads of elmo/tagging.py and elmo/pairs.py, which quote the paper.
"""

from experiments import common
from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

SIMPLER = 'the network on top is simpler than that of the paper'
COLUMNS = {
  'CoNLL-2003 F1': ('elmo/tagging.py:conll2003,both', 'test/f1', 100, '', 92.22),
  'SNLI': ('elmo/pairs.py:snli,input', 'test/accuracy', 100, 'snli', 88.7),
  'SQuAD F1': ('elmo/pairs.py:squad,both', 'validation/f1', 1, 'squad', 85.8),
}


def get_table(scale, arg=''):
  """Takes the scale; `arg` may be `quick`."""
  columns = {
    name: published.column(metric, [config], arg, times=times, folder=folder, unlike=SIMPLER)
    for name, (config, metric, times, folder, _) in COLUMNS.items()
  }
  for column in columns.values():
    column['configs'] = {'elmo': next(iter(column['configs'].values()))}
  numbers = {name: number for name, (*_, number) in COLUMNS.items()}
  return dict(
    title='ELMo, Table 1, from published weights',
    paper='Peters et al. 2018, Table 1, on test (SQuAD: its server)',
    mark='C',
    rows=published.rows({'elmo': dict(family='elmo', published=numbers)}, arg),
    columns=columns,
    tuning_seeds=1 if 'quick' in common.words(arg) else 5,
  )
