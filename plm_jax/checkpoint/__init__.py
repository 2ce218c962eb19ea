"""State of a run on disk: saved in the background, checked against checksums, restored onto any devices.

Public names: `Checkpoints` saves and restores the steps of a run; `restore`, `best_step` and `Step` are for commands
that only read them. `open_params` and `save_params` handle parameters alone, as `Params`, which map a path to a `Leaf`.
Commands open folders of weights with `weights.open`, which calls the former. `init_from` starts a model from parts of
others.
"""

from plm_jax.checkpoint.checkpoints import NOTHING, Checkpoints, arrays, broken_leaves, make_aside, restore, set_aside
from plm_jax.checkpoint.params import INDEX, NAME, Leaf, Params, in_memory, open_params, save_params
from plm_jax.checkpoint.saved_steps import SET_ASIDE, CheckpointError, Step, best_step, check_there, for_orbax

__all__ = [
  'INDEX', 'NAME', 'NOTHING', 'SET_ASIDE', 'CheckpointError', 'Checkpoints', 'Leaf', 'Params', 'Step', 'arrays',
  'best_step', 'broken_leaves', 'check_there', 'for_orbax', 'in_memory', 'make_aside', 'open_params', 'restore',
  'save_params', 'set_aside',
]  # fmt: skip
