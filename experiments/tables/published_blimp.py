"""BLiMP, minimal pairs without training, from published weights (Warstadt et al. 2020; Salazar et al. 2020, Table 6).

plm-jax tables experiments/tables/published_blimp.py --scale=published --weights=DIR --workdir=runs/tables --print
plm-jax tables experiments/tables/published_blimp.py:gpt2-large --scale=published --weights=DIR --workdir=runs/tables \
    --data=../shared/data

Words after the colon: rows. GPT-2 is compared by log-likelihood, BERT and RoBERTa by pseudo-log-likelihood.
Sources: the head of blimp/pairs.py, which quotes both papers. Four bits of SmolLM2 read 20 pairs of each of 67 kinds.
"""

from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

FAMILY = 'blimp/pairs.py'
PAPERS = {  # Salazar et al. score cased BERT
  'gpt2-large': 81.5,
  'roberta-base': 85.4,
  'roberta-large': 86.5,
}
FETCH = (
  "python -c \"import datasets; names = datasets.get_dataset_config_names('nyu-mll/blimp'); datasets."
  "concatenate_datasets([datasets.load_dataset('nyu-mll/blimp', name, split='train') for name in names])."
  "to_json('{data}/blimp/test.jsonl')\""
)
FEW = '+'.join(f'test[{1000 * kind}:{1000 * kind + 20}]' for kind in range(67))


def get_table(scale, arg=''):
  """Takes the scale; `arg` rows."""
  column = published.column(
    'test/accuracy', [FAMILY], of='evaluation', folder='blimp', fetch=FETCH, whole=67_000, times=100,
    keys={'eval': {'test': dict(data=dict(split='test'))}, 'best': None, 'data.batch_size': 64},
  )  # fmt: skip
  rows = {name: dict(published={'BLiMP': number}) for name, number in PAPERS.items()}
  rows['SmolLM2-135M-Instruct-4bit'] = dict(limits={'BLiMP': {'eval.test.data.split': FEW}})
  return dict(
    title='BLiMP without training, from published weights',
    paper='Warstadt et al. 2020, Table 3, and Salazar et al. 2020, Table 6; accuracy over 67 kinds of pairs',
    mark='C',
    rows=published.rows(rows, arg, family=FAMILY),
    columns={'BLiMP': column},
    tuning_seeds=1,
  )
