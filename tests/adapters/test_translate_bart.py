"""Translation by BART behind a new encoder: what trains in each stage, losses beside transformers', what is refused."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import optim
from plm_jax.adapters import sequence, translate_bart
from plm_jax.core import param_paths
from plm_jax.models import bart, bert, t5
from plm_jax.optim import groups
from plm_jax.training import step
from tests import tiny
from tests.adapters import test_sequence
from tests.generate import peers

pytestmark = pytest.mark.turns

VOCAB, SECOND = tiny.FakeVocab(size=peers.VOCAB), tiny.FakeVocab(size=83)
SOURCE = {'name': 'bert', 'variant': 'tiny', 'overrides': {**peers.SIZES, 'max_length': 32, 'dropout': 0.0}}
HALVES = ('query', 'key', 'value')
# what trains in the first stage beside the new encoder (Lewis et al. 2019, §3.4)
FIRST = {
  'trunk/encoder/position_embed/table',
  'trunk/decoder/position_embed/table',
  *(f'trunk/encoder/layers/0/attention/{name}/{part}' for name in HALVES for part in ('kernel', 'bias')),
}


def make(stage: str = 'first', **settings):
  given = {'trunk': peers.CASES['bart'].trunk, 'vocab': VOCAB, 'second_vocab': SECOND, 'source': SOURCE}
  return translate_bart.make(**given | {'stage': stage} | settings)


def batch():
  """Rows of the second vocabulary, with ids that the first one does not have."""
  rows = test_sequence.make_batch()
  shifted = jnp.where(rows['segment_ids'] > 0, rows['tokens'] + SECOND.size - VOCAB.size, SECOND.pad_id)
  return {**rows, 'tokens': shifted}


@functools.cache
def params():
  drawn = tiny.init_params(make('second'), batch())['trunk']
  return {'trunk': {**drawn, **peers.params_of('bart')}}


def each(tree) -> dict[str, np.ndarray]:
  """Every layer of every parameter by its path."""
  found = {}
  for path, leaf in param_paths.flat(tree).items():
    names = param_paths.virtual_paths(path, leaf)
    found |= dict(zip(names, np.asarray(leaf) if len(names) > 1 else [np.asarray(leaf)], strict=True))
  return found


def may_train(task, everything) -> set[str]:
  return {path for path in everything if any(re.fullmatch(pattern, path) for pattern in task.trains)}


def updated(stage: str):
  """The parameters after two updates, with weight decay and a limit on the norm."""
  task, rows = make(stage), batch()
  tx = optim.make(
    params=step.abstract_params(task, tiny.spec(rows)), trains=task.trains, rate=1e-2, steps=10, schedule='constant',
    decay=0.1, clip=0.1,
  )  # fmt: skip
  zero = jnp.zeros((), jnp.int32)
  state = step.TrainState(zero, params(), tx.init(tx.split(params())[0]), zero, zero)
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  for _ in range(2):
    state, _ = train(state, rows, jax.random.key(0))
  return state.params


# What trains ---------------------------------------------------------------------------------------------------------


def test_the_tensors_of_the_first_stage_are_those_of_the_paper():
  everything = set(each(params()))
  trained = may_train(make('first'), everything)
  assert trained == FIRST | {path for path in everything if path.startswith('trunk/source/')}
  assert may_train(make('second'), everything) == everything
  assert len(everything - trained) == 2 * 16 + 2 * 26 + 2 * 2 + 1 - 6  # layers, norms of embeddings, the token table


@pytest.mark.parametrize('stage', ['first', pytest.param('second', marks=pytest.mark.slow)])
def test_what_trains_changes_and_the_rest_keeps_its_bits(stage):
  before, after = each(params()), each(updated(stage))
  changed = {path for path, leaf in after.items() if leaf.tobytes() != before[path].tobytes()}
  assert changed == may_train(make(stage), before)


def test_the_log_names_what_trains():
  abstract = step.abstract_params(make('first'), tiny.spec(batch()))
  text = groups.table(abstract, scale=(('.*', 1.0),), decay=0.0, steps=10, trains=make('first').trains)
  lines = {line.split()[0]: line.split() for line in text.splitlines()}
  assert 'frozen' not in lines['trunk/source'] and lines['trunk/token_embed'][-2] == 'frozen'
  attention = 3 * (16 * 16 + 16)
  source = sum(leaf.size for path, leaf in each(params()).items() if path.startswith('trunk/source/'))
  assert f'{source + 2 * 34 * 16 + attention:,} of ' in text.splitlines()[-1]


# What is computed ----------------------------------------------------------------------------------------------------


def test_bart_reads_the_states_of_the_encoder_as_transformers_does():
  """The peer gets our encoder's states as `inputs_embeds`, and labels smoothed by its own code."""
  torch, trainer = pytest.importorskip('torch'), pytest.importorskip('transformers.trainer_pt_utils')
  rows = batch()
  encoder = bert.make(vocab_size=SECOND.size, variant='tiny', overrides=SOURCE['overrides'])
  states = encoder.apply(
    {'params': params()['trunk']['source']}, rows['tokens'], segment_ids=rows['segment_ids']
  )['hidden']  # fmt: skip
  model = peers.peer('bart')
  model.config.pad_token_id, model.config.decoder_start_token_id = VOCAB.pad_id, VOCAB.eos_id
  segments, targets, real = (
    torch.tensor(np.asarray(rows[name])).long() for name in ('segment_ids', 'target_tokens', 'target_segment_ids')
  )
  labels = torch.where(real > 0, targets, -100)
  with torch.no_grad():
    out = model(inputs_embeds=torch.tensor(np.asarray(states)).double(), attention_mask=segments, labels=labels)
  found = test_sequence.run(make('first'), params(), rows)
  theirs = trainer.LabelSmoother(epsilon=0.1)(out, labels)
  assert tiny.means(found.metrics)['loss'] == pytest.approx(float(out.loss), rel=1e-5)
  assert float(found.value) == pytest.approx(float(theirs), rel=1e-5)


def test_what_is_written_is_the_likeliest_at_each_token():
  """Generation reads through the new encoder as training does."""
  rows, task = batch(), make('first')
  made = jax.jit(functools.partial(step.predict_step, task=task))(params(), rows, jax.random.key(0))
  real = jnp.asarray((np.arange(5) < np.asarray(made['written'])[:, None]).astype(np.int32))
  again = {**rows, 'target_tokens': made['tokens'], 'target_segment_ids': real}
  assert tiny.means(test_sequence.run(task, params(), again).metrics)['token_accuracy'] == 1.0
  other = {**again, 'tokens': jnp.where(rows['segment_ids'] > 0, 7 + rows['tokens'] % 50, 0)}
  assert tiny.means(test_sequence.run(task, params(), other).metrics)['token_accuracy'] < 1.0


def test_without_the_encoder_it_is_the_adapter_sequence():
  """A BART alone computes what it did: `source` is the only difference."""
  rows = test_sequence.make_batch()
  plain = sequence.make(trunk=peers.CASES['bart'].trunk, vocab=VOCAB, start='eos', label_smoothing=0.1)
  alone = float(test_sequence.run(plain, test_sequence.params_of('bart'), rows).value)
  assert alone != pytest.approx(float(test_sequence.run(make('first'), params(), rows).value), rel=1e-3)
  assert peers.CASES['bart'].trunk.source is None


# What cannot be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'stage': 'third'}, r"adapter\.stage='third'.*first, second"),
    ({'trunk': tiny.make_trunk('gpt')}, r"'translate_bart'.*encoder-decoder.*model\.name"),
    ({'trunk': t5.make(vocab_size=61, variant='t5-small')}, r'ReadsStates.*T5.*source.*model\.name'),
    ({'source': {**SOURCE, 'name': 'gpt'}}, r'adapter\.source\.name.*Gpt.*causal'),
    (
      {'trunk': bart.make(vocab_size=61, variant='bart-base')},
      r'adapter\.source.*Bert.*16.*Bart.*overrides\.hidden_dim=768',
    ),
  ],
)
def test_what_cannot_be_is_said(settings, message):
  with pytest.raises(ValueError, match=message):
    make(**settings)
