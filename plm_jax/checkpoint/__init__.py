from plm_jax.checkpoint.checkpoints import NOTHING, Checkpoints, restore
from plm_jax.checkpoint.params import INDEX, NAME, Leaf, load_params, open_index, save_params
from plm_jax.checkpoint.records import CheckpointError, Step, best_step

__all__ = [
  'INDEX',
  'NAME',
  'NOTHING',
  'CheckpointError',
  'Checkpoints',
  'Leaf',
  'Step',
  'best_step',
  'load_params',
  'open_index',
  'restore',
  'save_params',
]
