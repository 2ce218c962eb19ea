"""GLM large: Du et al. 2021, §3.1; 335M.

python -m plm_jax.train --config=experiments/glm/large.py --workdir=runs/glm/large

Vocabulary, rows and blanks are those of base.py.

Hardware: not published. Estimate for 16 TPU v5e chips at 40 % of peak: 2.4 days.
Expect: as base.py.

Arguments: `quick`.
Differs from the paper: as base.py says.
"""

from experiments import common
from experiments.glm import base


def get_config(arg=''):
  """Takes `quick`."""
  c = base.get_config()
  c.steps = 200_000
  c.model = dict(c.model, variant='glm-large')
  c.optim = dict(c.optim, rate=2e-4)
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  common.run(arg)  # refuses other words
  return common.quick(c, arg)
