"""An intermediate task: does MiniLM learn small sets of pairs better after MNLI? (Phang et al. 2018, STILTs.)

bash launch/released.sh
plm-jax tables experiments/tables/minilm_stages.py --scale=small --workdir=runs/tables --data=../shared/data

The paper's BERT-large gains most on RTE. Small: as minilm.py, 500 updates of MNLI and then those of the column. The row
without them shares its runs with minilm.py.
"""

from experiments.tables.shared import claims, minilm


def get_table(scale):
  """Takes a scale."""
  columns = minilm.columns(scale, 'RTE', 'MRPC', 'STS-B')
  between = minilm.between(scale, 'MNLI')
  return dict(
    title='MiniLM with an intermediate task',
    paper='Phang et al. 2018, of BERT-large',
    mark='none',
    rows={'fine-tuned': minilm.trunk(scale, direct=True), 'after MNLI': minilm.trunk(scale)},
    columns={name: column | between for name, column in columns.items()},
    claims=claims.claims(list(columns), ('after MNLI', 'fine-tuned')),
    tuning_seeds=1 if scale == 'tiny' else 3,
  )
