from plm_jax.config.batch_keys import gives, reads
from plm_jax.config.blocks import of_data, own_task, steps_between
from plm_jax.config.load import load, resolve
from plm_jax.config.resume import check_resume, differences

__all__ = ['check_resume', 'differences', 'gives', 'load', 'of_data', 'own_task', 'reads', 'resolve', 'steps_between']
