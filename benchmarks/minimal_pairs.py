"""How much longer do minimal pairs of a masked language model take than their matrix products alone?

python -m benchmarks.minimal_pairs --weights=FOLDER --data=../shared/data/blimp [--every=22]

FOLDER is a BERT. The products are those of the batches that the evaluation reads: query, key, value, attention, output
and both feed-forward products of each layer, of the last only keys and values of all tokens and the rest of one, then
the head. CPU seconds of this process, with and without reading and compiling; --every=N takes the first of N pairs.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp

from plm_jax import config
from plm_jax.core import sharding
from plm_jax.training import evaluation, parts
from plm_jax.training.evaluate_folder import model_of, placed


@functools.partial(jax.jit, static_argnames='depth')
def products(params, shape, depth):
  """Chain the products of a batch [b, l], without norms, softmax and activations."""
  batch, length = shape.shape
  layers, head = params['trunk']['layers'], params['mlm']['dense']['kernel']
  x = jnp.ones((batch, length, head.shape[0])) + shape[..., None]
  for layer in range(depth):
    own = jax.tree.map(lambda leaf, layer=layer: leaf[layer], layers)
    y = x[:, :1] if layer == depth - 1 else x
    query, key, value = (
      jnp.einsum('bld,dhk->blhk', of, own[name]['kernel']) for name, of in (('query', y), ('key', x), ('value', x))
    )
    seen = jnp.einsum('blhk,bmhk->bhlm', query, key)
    out = jnp.einsum('blhk,hkd->bld', jnp.einsum('bhlm,bmhk->blhk', seen, value), own['out']['kernel'])
    x = out @ own['mlp']['up']['kernel'] @ own['mlp']['down']['kernel']
  return (x[:, 0] @ head @ params['trunk']['token_embed']['table'].T).sum()


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--weights', required=True)
  parser.add_argument('--data', required=True)
  parser.add_argument('--every', type=int, default=22)
  arguments = parser.parse_args()
  changes = {'path': arguments.data}
  settings = config.load('experiments/blimp/pairs.py')
  settings['data'] = {**settings['data'], **changes}
  settings = config.resolve(settings)
  made, params = model_of(arguments.weights, settings)
  layout = parts.make_layout(settings)
  with sharding.use(layout):
    began = time.process_time()
    (source,) = parts.make_evaluations(settings, made.vocab, reader=made).values()
    reading = time.process_time() - began
    own = placed(params, made.task, source.spec, layout=layout)
    batches = [batch for number, batch in enumerate(source.once()) if number % arguments.every == 0]
    shapes = {batch['tokens'].shape for batch in batches}
    steps, depth = evaluation.make_steps(made.task), made.trunk.config.num_layers

    def evaluate():
      for batch in batches:
        jax.block_until_ready(steps.predicting(own, batch, (), jax.random.key(0)))

    def multiply():
      for batch in batches:
        jax.block_until_ready(products(own, jnp.zeros(batch['tokens'].shape), depth))

    seconds = {}
    for name, run in (('evaluation', evaluate), ('products', multiply)):
      for part in ('first', 'again'):
        began = time.process_time()
        run()
        seconds[name, part] = time.process_time() - began
  real = sum(int(batch['segment_ids'].sum()) for batch in batches)
  read = sum(batch['tokens'].size for batch in batches)
  sequences = sum(int((batch['counted'].sum(axis=1) > 0).sum()) for batch in batches)
  print(f'reading and planning {source.rows:,} pairs {reading:.1f} s')
  print(f'{len(batches)} of {source.steps_per_epoch} batches, {len(shapes)} shapes, {sequences:,} sequences')
  print(f'padding {1 - real / read:.1%} of tokens')
  for name in ('evaluation', 'products'):
    print(f'{name} {seconds[name, "again"]:.1f} s, compiling {seconds[name, "first"] - seconds[name, "again"]:.1f} s')
  ours, theirs = (seconds[name, 'again'] for name in ('evaluation', 'products'))
  print(f'ratio {ours / theirs:.2f}')


if __name__ == '__main__':
  main()
