"""LoRA: the inner task at the start, what trains and what does not, counts, and the doors to a run."""

import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, optim, weights
from plm_jax.adapters import lora, wrapped
from plm_jax.commands import convert, report
from plm_jax.commands import generate as generate
from plm_jax.config import build
from plm_jax.core import errors, param_paths
from plm_jax.generate import decode
from plm_jax.training import evaluate_saved, loop, parts, step
from plm_jax.weights.folders import WeightsError
from tests import runs, tiny
from tests.adapters.running import metrics, start, train
from tests.test_contract import make_trunk

pytestmark = pytest.mark.turns

CLASSIFY = {'name': 'classify', 'classes': 3, 'dropout': 0.0}
BATCH = {**tiny.make_batch(((16,), (7,), (11,), (4,))), 'label': jnp.array([2, 0, 1, 2])}
MODELS = ('bert', 'albert', 't5', 'gpt', 'deberta', 'xlnet', 'bart', 'llama', 'glm', 'palm')
FAST = ('bert', 'albert')
KEY = jax.random.key(3)


def make(model='bert', *, inner=CLASSIFY, fields=None, **settings):
  return lora.make(trunk=make_trunk(model, **(fields or {})), vocab=tiny.VOCAB, inner=inner, **settings)


def inner_task(model='bert', inner=CLASSIFY):
  return build.make('adapters', inner, trunk=make_trunk(model), vocab=tiny.VOCAB)


# The start -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('model', [m if m in FAST else pytest.param(m, marks=pytest.mark.slow) for m in MODELS])
def test_it_begins_as_the_inner_task_bit_for_bit(model):
  task, plain = make(model), inner_task(model)
  params, own = start(task, BATCH), start(plain, BATCH)
  added = params.pop('lora')
  assert tiny.same(params, own)
  assert tiny.same(metrics(task, BATCH, {**params, 'lora': added}), metrics(plain, BATCH, own))
  for path, leaf in param_paths.flat(added).items():
    assert (np.asarray(leaf) == 0).all() == path.endswith('/b'), path


def test_a_begins_within_the_bound_of_kaiming():
  a = np.asarray(start(make(targets=('query', 'out')), BATCH)['lora']['trunk']['layers']['out']['a'])  # [n, h k, r]
  assert a.shape == (2, 32, 8)
  assert 0.9 / np.sqrt(32) < np.abs(a).max() <= 1 / np.sqrt(32)
  assert not np.array_equal(a[0], a[1])


@pytest.mark.parametrize(
  ('model', 'variant', 'vocab_size', 'expected'),
  [
    # as peft.LoraConfig(r=8, target_modules=['query', 'value'] or ['q', 'v'] or ['q_proj', 'v_proj']) prints them
    ('bert', 'bert-base', 30522, 294_912),
    ('bert', 'roberta-large', 50265, 786_432),
    ('t5', 't5-base', 32128, 884_736),
    ('llama', 'llama-7b', 32000, 4_194_304),
    # one matrix that all layers share, of 768 x 768 each
    ('albert', 'albert-base-v2', 30000, 2 * 8 * (768 + 768)),
  ],
)
def test_the_count_is_that_of_the_closed_form(model, variant, vocab_size, expected):
  trunk = build.make('models', {'name': model, 'variant': variant}, vocab_size=vocab_size, execution=tiny.PLAIN)
  task = lora.make(trunk=trunk, vocab=tiny.VOCAB, inner={'name': 'classify'})
  shapes = step.abstract_params(task, tiny.spec(BATCH))
  tx = optim.make(params=shapes, steps=1, rate=1.0, trains=task.trains)
  counts = {name: sum(leaf.size for leaf in jax.tree.leaves(tree)) for name, tree in tx.split(shapes)[0].items()}
  assert counts == {'trunk': 0, 'lora': expected, 'head': (trunk.hidden_dim + 1) * 2}


# Training ------------------------------------------------------------------------------------------------------------


def test_the_frozen_part_keeps_every_bit_and_the_rest_trains():
  first, last = train(make(targets=('query', 'value', 'trunk/layers/mlp/.*')), BATCH, rate=1e-2)
  assert tiny.same(last.params['trunk'], first.params['trunk'])
  old, new = (param_paths.flat({name: state.params[name] for name in ('lora', 'head')}) for state in (first, last))
  assert {path for path in old if not tiny.same(old[path], new[path])} == old.keys()
  held = {path.partition('/mu/')[2] for path in param_paths.flat(last.opt_state) if '/mu/' in path}
  assert held == old.keys()  # no moment of a frozen parameter


def test_other_parameters_train_where_they_are_named():
  first, last = train(make(trained=('(?!trunk/).*', 'trunk/layers/1/.*norm/.*')), BATCH, rate=1e-2)
  old, new = (param_paths.flat(state.params['trunk']) for state in (first, last))
  changed = {path for path in old if not tiny.same(old[path], new[path])}
  assert changed == {f'layers/{norm}_norm/{part}' for norm in ('attention', 'mlp') for part in ('scale', 'bias')}
  for path in changed:
    assert tiny.same(old[path][0], new[path][0])
    assert not tiny.same(old[path][1], new[path][1])


def test_the_model_runs_on_the_folded_matrices():
  task = make(targets=('query', 'out', 'down'), rank=3, alpha=7.5)
  params = tiny.init_params(task, BATCH)  # B is not zero
  leaves, added = param_paths.flat({name: params[name] for name in ('trunk', 'head')}), param_paths.flat(params['lora'])
  for path in {path.rpartition('/')[0] for path in added}:
    parts_ = {part: np.asarray(added[f'{path}/{part}']) for part in 'ab'}
    kernel = np.asarray(leaves[f'{path}/kernel'])
    whole = lora.fold(kernel, parts_, {'rank': 3, 'alpha': 7.5})
    for layer in range(2):  # by the matrices of each layer
      a, b = parts_['a'][layer].astype(np.float64), parts_['b'][layer].astype(np.float64).reshape(3, -1)
      expected = kernel[layer] + 2.5 * (a @ b).reshape(kernel[layer].shape)
      np.testing.assert_allclose(whole[layer], expected, rtol=1e-5, atol=1e-6)
    leaves[f'{path}/kernel'] = jnp.asarray(whole)
  ours, theirs = metrics(task, BATCH, params), metrics(inner_task(), BATCH, param_paths.nested(leaves))
  assert tiny.worst(ours, theirs) < 1e-5
  assert tiny.worst(ours, metrics(inner_task(), BATCH, {name: params[name] for name in ('trunk', 'head')})) > 1e-3


def test_dropout_is_of_training_alone():
  task, dry = make(dropout=0.5), make()
  params = tiny.init_params(task, BATCH)
  assert tiny.same(metrics(task, BATCH, params), metrics(dry, BATCH, params))
  example = task.prepare(KEY, BATCH)

  @functools.partial(jax.jit, static_argnums=0)
  def outputs(task, key):
    return step.bind(task, params, train=True, rng=key)(**example.inputs)[0]

  assert not tiny.same(outputs(task, jax.random.key(0)), outputs(task, jax.random.key(1)))
  assert tiny.same(outputs(dry, jax.random.key(0)), outputs(dry, jax.random.key(1)))


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'targets': ('qeury',)}, r"adapter\.targets: 'qeury'.*Bert.*'query'"),
    ({'targets': ()}, r'adapter\.targets=\(\)'),
    ({'inner': {'name': 'lora', 'inner': CLASSIFY}}, r"adapter\.inner\.name='lora'"),
    ({'inner': {**CLASSIFY, 'frozen': True}}, r'adapter\.inner\.name.*adapter\.inner\.frozen'),
  ],
)
def test_what_cannot_be_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    make(**settings)


def test_patterns_without_a_parameter_are_refused():
  with pytest.raises(ValueError, match=r"adapter\.trained: 'trunk/poler/\.\*'"):
    step.abstract_params(make(trained=('trunk/poler/.*',)), tiny.spec(BATCH))
  with pytest.raises(errors.ConfigError, match=r"optim\.scale: 'trunk/\.\*'"):
    tiny.make_optimiser(make(), BATCH, scale=(('trunk/.*', 0.5), ('.*', 1.0)))
  # what says the same as the adapter is no mistake
  tiny.make_optimiser(make(), BATCH, scale=(('trunk/.*', None), ('lora/.*', 2.0), ('.*', 1.0)))


def test_a_trunk_without_the_layers_is_refused_by_name():
  with pytest.raises(ValueError, match=r"'query'.*Cnn.*down, up"):
    make('cnn')


# Runs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp('data'))


GPT = {'model': {'name': 'gpt', 'variant': 'gpt2', 'overrides': {**runs.SIZES, 'init_std': 0.2}}}


@pytest.fixture(scope='module')
def gpt(data):
  """A pre-training run."""
  assert loop.train(runs.settings('causal_lm', data, steps=4, **GPT), data / 'gpt').exit_code == 0
  return data / 'gpt'


@pytest.fixture(scope='module')
def tuned(data, gpt):
  """A LoRA run that goes on from it with the same objective."""
  settings = runs.settings(
    'causal_lm',
    data,
    objective=None,
    adapter={'name': 'lora', 'rank': 4, 'inner': {'name': 'causal_lm'}},
    init_from=({'source': str(gpt)},),
    optim={'rate': 0.1},
    **GPT,
  )
  with runs.logging_on():
    assert loop.train(settings, data / 'tuned').exit_code == 0
  return data / 'tuned'


@pytest.fixture(scope='module')
def merged(data, tuned):
  assert convert.main(['export', str(tuned), str(data / 'merged')]) == 0
  return data / 'merged'


def test_a_run_prints_its_first_steps_and_what_to_do_next(data):
  steps = {'steps': 3, 'eval_every': 3, 'accumulate': 2, 'data': {'batch_size': 16}}
  with runs.logging_on():
    assert loop.train(runs.settings('causal_lm', data, **steps, **GPT), data / 'told').exit_code == 0
  log = (data / 'told' / 'log.txt').read_text()
  assert re.search(r'step 1 of 3, with its compilation: [\d.]+ s\n.*step 2 of 3: [\d.]+ s, so about 0:0', log)
  assert 'an update reads 16 rows (data.batch_size) in 2 parts of 8' in log
  (words,) = re.findall(r'plm-jax report (.*)', log)
  assert 'plm-jax train --config=experiments/finetune/classify.py' in log and 'plm-jax predict' not in log
  assert report.main(words.replace('report.html', str(data / 'report.html')).split()) == 0


def test_a_run_prints_what_trains_and_keeps_the_rest(gpt, tuned):
  count = 2 * 2 * 4 * (32 + 32)  # layers, matrices, rank
  assert f' parameters, {count:,} trained, {count:,} outside the trunk' in (tuned / 'log.txt').read_text()
  assert json.loads((tuned / 'result.json').read_text())['trained'] == count
  before, after = runs.saved_state(gpt, step=4), runs.saved_state(tuned)
  assert not runs.differing(runs.params_of(before, 'params/trunk'), runs.params_of(after, 'params/trunk'))
  assert not [name for name in after if name.startswith('opt_state/') and '/trunk/embed' in name]


def continuation(folder):
  trunk, params = weights.load(folder)
  tokens = jnp.arange(40, 52).reshape(2, 6)
  return decode.generate(trunk, params, tokens, segment_ids=jnp.ones_like(tokens), max_new=16)


def test_generation_is_that_of_the_merged_export_token_for_token(gpt, tuned, merged, capsys):
  own, exported, before = continuation(tuned), continuation(merged), continuation(gpt)
  assert own.tokens.tolist() == exported.tokens.tolist()
  assert own.scores.tolist() == exported.scores.tolist()
  assert own.tokens.tolist() != before.tokens.tolist()
  flags = ('--prompt=Anna is in the', '--max_new=8')
  assert generate.main([f'--workdir={tuned}', *flags]) == 0
  ours = capsys.readouterr().out
  assert generate.main([f'--weights={merged}', *flags]) == 0
  assert capsys.readouterr().out == ours


def test_evaluation_is_that_of_the_merged_export(data, tuned, merged):
  settings = config.resolve(config.load(str(tuned)))
  plain = runs.settings('causal_lm', data, **GPT)
  evaluate_saved.evaluate_run(settings, parts.RunFolder.at(tuned))
  (data / 'scored').mkdir()
  evaluate_saved.evaluate_folder(plain, merged, folder=parts.RunFolder.at(data / 'scored'))
  evaluate_saved.evaluate_folder(settings, tuned, folder=parts.RunFolder.at(data / 'by_folder'))
  ours, theirs, by_folder = (
    json.loads((folder / 'evaluations.jsonl').read_text().splitlines()[-1])
    for folder in (tuned, data / 'scored', data / 'by_folder')
  )
  assert ours['validation/loss'] == pytest.approx(theirs['validation/loss'], rel=1e-5)
  assert ours['validation/loss'] == pytest.approx(by_folder['validation/loss'], rel=1e-5)


def test_other_doors_are_refused_by_name(tuned):
  with pytest.raises(WeightsError, match=r"'lora'.*config\.json"):
    _ = weights.open(tuned / 'checkpoints').params
  _, task = weights.load(tuned)[0], make('gpt', inner={'name': 'causal_lm'})
  with pytest.raises(ValueError, match="parameters 'lora'"):
    task.model.apply({'params': {'trunk': {}}}, tokens=None)


def test_the_folder_of_peft_holds_the_updates_by_its_names(data, gpt, tuned, merged):
  assert convert.main(['export', str(tuned), str(data / 'peft'), '--form=peft']) == 0
  about = json.loads((data / 'peft' / 'adapter_config.json').read_text())
  # c_attn joins our query, key and value: two updates of rank 4 are one of rank 8
  assert (about['peft_type'], about['task_type'], about['r'], about['lora_alpha']) == ('LORA', 'CAUSAL_LM', 8, 32.0)
  assert about['fan_in_fan_out'] is True
  assert about['base_model_name_or_path'] == str(gpt)
  assert about['target_modules'] == [f'transformer.h.{layer}.attn.c_attn' for layer in range(2)]
  tensors = read(data / 'peft' / 'adapter_model.safetensors')
  assert convert.main(['export', str(gpt), str(data / 'base')]) == 0
  before, after = (read(folder / 'model.safetensors') for folder in (data / 'base', merged))
  scale = about['lora_alpha'] / about['r']
  for name in about['target_modules']:
    a, b = (tensors.pop(f'base_model.model.{name}.lora_{part}.weight') for part in 'AB')
    expected = before[f'{name}.weight'] + scale * (b @ a).T  # theirs is [inputs, outputs]
    np.testing.assert_allclose(after[f'{name}.weight'], expected, rtol=1e-5, atol=1e-6)
  assert not tensors
  with pytest.raises(WeightsError, match=rf'peft.*`plm-jax convert export {gpt} NEW`.*base_model_name_or_path'):
    _ = weights.open(data / 'peft').params
  (data / 'peft' / 'adapter_config.json').write_text(json.dumps({**about, 'base_model_name_or_path': '../base'}))
  read_back, expected = (weights.open(folder).params for folder in (data / 'peft', merged))
  for path, array in expected.each():
    np.testing.assert_allclose(read_back[path].read(None), array, rtol=1e-5, atol=1e-6)
  with pytest.raises(errors.ConfigError, match=r"--form=peft.*gpt.*adapter 'lora'"):
    convert.main(['export', str(gpt), str(data / 'no_peft'), '--form=peft'])


def read(file: pathlib.Path):
  from safetensors.numpy import load_file

  return load_file(file)


def run_of_classes(data, name, adapter, **changes):
  """A run of BERT on labelled sentences."""
  settings = runs.settings('classify', data, model={'variant': 'bert-base'}, steps=4, **changes)
  settings = config.resolve({**settings, 'adapter': adapter})
  assert loop.train(settings, data / name).exit_code == 0
  return data / name


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['gpt', 'bert', 'bert_new_pooler'])
def test_peft_reads_it_and_gives_the_same_logits(kind, data, gpt, tuned):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  peft = pytest.importorskip('peft')
  if kind == 'gpt':
    base, run, auto = gpt, tuned, transformers.AutoModelForCausalLM
  else:
    base = data / 'classified'
    if not base.exists():
      run_of_classes(data, 'classified', {'name': 'classify', 'classes': 2})
    if kind == 'bert_new_pooler':  # trained by the update's run, and written whole
      model = {'variant': 'bert-base', 'overrides': {**runs.SIZES, 'init_std': 0.2}}
      base = data / 'masked'
      assert loop.train(runs.settings('mlm', data, model=model, steps=2, eval_every=2), base).exit_code == 0
    adapter = {'name': 'lora', 'targets': ('query', 'trunk/layers/(out|mlp/up)'), 'inner': {'name': 'classify'}}
    run = run_of_classes(data, f'{kind}_lora', adapter, init_from=({'source': str(base)},), optim={'rate': 0.1})
    auto = transformers.AutoModelForSequenceClassification
  for source, form, name in ((base, 'release', 'b'), (run, 'release', 'm'), (run, 'peft', 'p')):
    assert convert.main(['export', str(source), str(data / f'{kind}_{name}'), f'--form={form}']) == 0
  ids = torch.arange(40, 56).reshape(2, 8)
  merged = auto.from_pretrained(data / f'{kind}_m').eval()
  model = peft.PeftModel.from_pretrained(auto.from_pretrained(data / f'{kind}_b'), data / f'{kind}_p').eval()
  with torch.no_grad():
    expected, found = merged(ids).logits, model(ids).logits
    plain = auto.from_pretrained(data / f'{kind}_b').eval()(ids).logits
  assert float((expected - found).abs().max()) < 1e-5
  assert float((expected - plain).abs().max()) > 1e-2
  trained = json.loads((run / 'result.json').read_text())['trained']
  own = {name: value for name, value in model.named_parameters() if 'lora_' in name or 'modules_to_save' in name}
  joined = 2 * 2 * 4 * 32 if kind == 'gpt' else 0  # PEFT's pair spans the key as well: [96, 8] and not twice [32, 4]
  assert sum(value.numel() for value in own.values()) == trained + 2 * (96 * 8 - 2 * 32 * 4) * bool(joined)


def test_wrapped_objectives_are_checked_before_jax():
  resolved = config.resolve(
    {
      **{
        key: value for key, value in runs.settings('causal_lm', pathlib.Path('/nowhere')).items() if key != 'objective'
      },
      'adapter': {'name': 'lora', 'inner': {'name': 'causal_lm'}},
    }
  )
  assert resolved['adapter']['inner']['logit_rows'] == 8
  assert config.reads(resolved) == ('tokens', 'segment_ids')
  assert build.unwrapped(resolved)['objective'] == resolved['adapter']['inner']
  with pytest.raises(errors.ConfigError, match=r"adapter\.inner\.name.*'clasify'"):
    config.resolve({**resolved, 'adapter': {'name': 'lora', 'inner': {'name': 'clasify'}}})
  with pytest.raises(errors.ConfigError, match=r'lm_wieght'):
    config.resolve({**resolved, 'adapter': {'name': 'lora', 'inner': {'name': 'classify', 'lm_wieght': 1.0}}})


def test_every_dense_layer_of_a_trunk_is_known():
  dense = wrapped.dense_layers(make_trunk('t5'))
  assert dense['trunk/decoder/layers/cross/out'] == wrapped.Axes(2, 1)
  assert dense['trunk/encoder/layers/attention/query'] == wrapped.Axes(1, 2)
  shared = wrapped.dense_layers(make_trunk('albert'))
  assert {'trunk/layers/attention/query', 'trunk/layers/feed_forward/mlp/up'} <= shared.keys()
