"""Words of other libraries lead to our keys: in configs, in flags and in the keywords of `generate`."""

import pytest

from plm_jax.cli import command
from plm_jax.config import aliases as words
from plm_jax.config import blocks, overrides, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from tests.config.test_annotations import DEFINITIONS

CONFIG = {
  'steps': 5,
  'vocab': {'name': 'wordpiece', 'path': 'here'},
  'model': {'name': 'bert', 'variant': 'tiny', 'overrides': {}},
  'objective': {'name': 'mlm'},
  'data': {'name': 'stream', 'path': 'there', 'length': 8, 'batch_size': 4},
  'optim': {'rate': 0.1},
}


def told(key):
  with pytest.raises(ConfigError) as caught:
    overrides.apply(CONFIG, [(key, '1')])
  return str(caught.value)


@pytest.mark.parametrize(
  ('key', 'words'),
  [
    ('optim.lr', 'did you mean optim.rate?'),
    ('optim.learning_rate', 'did you mean optim.rate?'),
    ('optim.learningRate', 'did you mean optim.rate?'),
    ('optim.wd', 'did you mean optim.decay?'),
    ('optim.warmup_steps', 'did you mean optim.warmup?'),
    ('optim.max_grad_norm', 'did you mean optim.clip?'),
    ('optim.weight-decay', 'did you mean optim.decay?'),
    ('lr', 'did you mean optim.rate?'),
    ('batch_size', 'did you mean data.batch_size?'),
    ('bs', 'did you mean data.batch_size?'),
    ('eval_batch_size', 'did you mean eval.validation.data.batch_size?'),
    ('num_train_steps', 'did you mean steps?'),
    ('max_steps', 'did you mean steps?'),
    ('num_epochs', 'did you mean epochs?'),
    ('gradient_accumulation_steps', 'did you mean accumulate?'),
    ('model.hidden_size', 'did you mean model.overrides.hidden_dim?'),
    ('model.overrides.d_model', 'did you mean model.overrides.hidden_dim?'),
    ('model.overrides.n_layer', 'did you mean model.overrides.num_layers?'),
    ('model.overrides.heads', 'did you mean model.overrides.num_heads?'),
    ('model.overrides.dropout_rate', 'did you mean model.overrides.dropout?'),
    ('model.overrides.vocab_size', 'plm-jax vocab train --size=N'),
    ('model.model_name', 'did you mean model.name?'),
    ('data.max_seq_length', 'did you mean data.length?'),
    ('data.seq_len', 'did you mean data.length?'),
    ('tokenizer', 'did you mean vocab.path?'),
    ('output_dir', '--workdir=DIR'),
    ('doc_stride', 'did you mean data.stride?'),
    ('fp16', 'did you mean execution.dtype?'),
    ('objective.mlm_probability', 'did you mean objective.where.rate?'),
    ('objective.where.mask_prob', 'did you mean objective.where.rate?'),
    ('model_name_or_path', 'did you mean init_from.0.source?'),
    ('optm', 'did you mean optim?'),
  ],
)
def test_a_word_of_another_library_leads_to_our_key(key, words):
  assert words in told(key)


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('--lr=1e-3', 'Did you mean --config.optim.rate?'),
    ('--batch_size=8', 'Did you mean --config.data.batch_size?'),
    ('--learning-rate=1e-3', 'Did you mean --config.optim.rate?'),
    ('--output_dir=x', 'The folder of a run is the flag --workdir=DIR.'),
    ('--wrkdir=x', "Did you mean '--workdir'?"),
  ],
)
def test_a_flag_of_another_library_leads_to_our_key(flag, words):
  with pytest.raises(ConfigError) as caught:
    command.command('train', '').parse_args([flag])
  assert words in str(caught.value)


KNOWN = {key for module, name in DEFINITIONS for key in signatures.keywords(module, name)}


@pytest.mark.parametrize('key', words.KEYS)
def test_every_key_of_the_table_exists(key):
  *parents, last = key.replace('NAME', '0').split('.')
  assert parents[:1] == [] or parents[0] in signatures.keywords('config.schema', 'Run')
  assert last in KNOWN or (last in blocks.NAMES and parents)


def test_no_word_stands_for_a_key_that_exists_in_its_place():
  run = set(signatures.keywords('config.schema', 'Run'))
  for key, theirs in words.KEYS.items():
    if '.' not in key:
      assert not run & set(theirs.split()) - {key}


@pytest.mark.parametrize(
  ('word', 'ours'),
  [
    ('max_new_tokens', 'max_new'),
    ('num_beams', 'beams'),
    ('do_sample', 'method'),
    ('no_repeat_ngram_size', 'no_repeat'),
    ('eos_token_id', 'eos_id'),
    ('attention_mask', 'segment_ids'),
    ('temprature', 'temperature'),
  ],
)
def test_a_keyword_of_generate_of_another_library_leads_to_ours(word, ours):
  from plm_jax.generate import constraints

  with pytest.raises(TypeError, match=f"no keyword '{word}'. Did you mean '{ours}'"):
    constraints.group('greedy', 4, {word: 1})


@pytest.mark.parametrize(
  ('word', 'told'),
  [
    ('repetition_penalty', 'no_repeat=3'), ('frequency_penalty', 'no_repeat=3'), ('typical_p', 'top_p and top_k'),
    ('min_p', 'top_p and top_k'), ('stop_strings', 'max_new tokens'), ('eos_token', 'max_new tokens'),
    ('bad_words_ids', 'neither forced'), ('num_beam_groups', "'greedy', 'sample' and 'beam'"),
    ('lenght_penalty', "Did you mean 'length_penalty'"), ('num_return_sequences', "Did you mean 'num_samples'"),
  ],
)  # fmt: skip
def test_a_setting_that_generation_lacks_is_told_by_its_meaning(word, told):
  from plm_jax.commands import generate as generation
  from plm_jax.generate import settings
  from plm_jax.inference.model import Model

  with pytest.raises(ConfigError, match=told.replace("'length", "'--length").replace("'num_s", "'--num_s")) as caught:
    generation.main(['--workdir=x', '--prompt=a', f'--{word}=1'])
  if 'length' not in told:
    assert "Did you mean '--length_penalty'" not in str(caught.value)
  with pytest.raises(ConfigError, match=told):
    Model(None, 1).generate('a', **{word: 1})
  assert word not in settings.DEFAULTS


def test_names_that_share_only_their_last_word_are_not_similar():
  assert errors.near('repetition_penalty', ['length_penalty']) == []
  assert errors.near('eval_steps', ['save_steps']) == []
  assert errors.near('size_batch', ['batch_size']) == errors.near('bach_size', ['batch_size']) == ['batch_size']
  assert errors.near('warm_up', ['warmup']) == ['warmup']


def test_generate_names_its_keyword_before_one_that_is_missing():
  from plm_jax.generate import generate

  with pytest.raises(TypeError, match=r"no keyword 'max_new_tokens'\. Did you mean 'max_new'"):
    generate(None, None, None, segment_ids=None, max_new_tokens=3)
  with pytest.raises(TypeError, match='needs the keywords segment_ids and max_new'):
    generate(None, None, None)


@pytest.mark.parametrize(('flag', 'ours'), [('--num_beams=3', '--beams'), ('--max_new_tokens=3', '--max_new')])
def test_a_flag_of_generation_leads_to_ours(flag, ours):
  from plm_jax.commands import generate as generation

  with pytest.raises(ConfigError, match=f"Did you mean '{ours}'"):
    generation.main(['--workdir=x', '--prompt=a', flag])


@pytest.mark.parametrize(
  ('words', 'told'),
  [
    (['--stop_at=-3'], 'expected int (1 <= x)'),
    (['--stop_at=0'], 'expected int (1 <= x)'),
    (['--workdir='], '--workdir is empty'),
    (['--workdir', ''], '--workdir is empty'),
    (['--process=1', '--processes=1', '--coordinator=localhost:1'], 'numbered 0 to 0'),
    (['--process=0', '--processes=0', '--coordinator=localhost:1'], 'expected int (1 <= x)'),
    (['--process=0', '--processes=1', '--coordinator=localhost'], 'HOST:PORT'),
    (['--process=5'], 'together or not at all'),
  ],
)
def test_a_flag_of_training_out_of_bounds_is_told(words, told):
  from plm_jax.commands import train

  quick = ['--config=experiments/quickstart/pretrain.py:quick', '--workdir=x']
  with pytest.raises(ConfigError) as caught:
    train.main([*quick, *words])
  assert told in str(caught.value)


def test_a_key_of_another_model_is_no_hint_for_itself():
  assert words.key_hint('num_heads', ['num_layers', 'dropout'], label='model.overrides') == (
    'did you mean model.overrides.num_layers?'
  )
  assert words.key_hint('max_length', ['dropout'], label='model.overrides') == 'did you mean data.length?'
