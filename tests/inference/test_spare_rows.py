"""Token tables with more rows than the tokenizer has ids: every method, training, and no token without a name."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax.checkpoint.init_from import initialise
from plm_jax.checkpoint.params import in_memory
from plm_jax.generate import settings
from plm_jax.inference import continued
from plm_jax.objectives import rtd
from plm_jax.text import tokenizer
from plm_jax.training.evaluate_folder import model_of
from tests import runs
from tests.training.before.test_model_from import FAMILIES, MLM, started
from tests.weights import published

torch = pytest.importorskip('torch')
pytest.importorskip('transformers')

LIKELY = 9.0  # of the rows without a token
TEXT = 'Anna is in the garden'
OBJECTIVES = {
  'deberta-decoder': {'name': 'emd_mlm'}, 'xlnet-lm': {'name': 'permutation_lm'}, 'gpt2': {'name': 'causal_lm'},
  'llama': {'name': 'causal_lm'}, 't5': FAMILIES['t5'].objective, 'bart': FAMILIES['bart'].objective,
}  # fmt: skip
CASES = [
  ('bert-mlm', 1), ('deberta-decoder', 16), ('gpt2', 16), ('t5', 28),
  *(pytest.param(*case, marks=pytest.mark.slow) for case in (
    ('bert-untied', 112), ('roberta-mlm', 1), ('albert-pretraining', 16), ('distilbert-mlm', 16), ('deberta-v2-mlm', 1),
    ('electra-generator', 16), ('xlnet-lm', 16), ('llama', 1), ('bart', 1),
  )),
]  # fmt: skip


@pytest.fixture(scope='module')
def make(data, tmp_path_factory):
  """(name, spare rows) -> (a folder with a vocabulary of 400 ids, their model)."""

  def make(name, spare):
    folder = tmp_path_factory.mktemp('theirs')
    case = 'deberta-v2-mlm' if name == 'deberta-decoder' else name
    ids = {'bos_token_id': 1, 'pad_token_id': 0, 'eos_token_id': 2, 'decoder_start_token_id': 0}
    length = {key: 70 for key in ('max_position_embeddings', 'n_positions') if key in published.CASES[case].fields}
    model = published.build(case, vocab_size=runs.VOCAB_SIZE + spare, **length, **ids)
    torch.manual_seed(0)
    with torch.no_grad():
      for name_of, leaf in model.named_parameters():
        leaf.add_(0.2 * torch.randn_like(leaf))
        if len(leaf) == runs.VOCAB_SIZE + spare and name_of.endswith(('bias', 'lm_head.weight')):
          leaf[runs.VOCAB_SIZE :] += LIKELY
    model.save_pretrained(folder)
    shutil.copy(data / 'vocab' / 'tokenizer.json', folder)
    if name == 'deberta-decoder':
      from safetensors.numpy import load_file, save_file

      tensors = load_file(folder / 'model.safetensors')
      tensors['deberta.embeddings.position_embeddings.weight'] = np.ones((70, 16), np.float32)
      save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
    return folder, model

  return make


@pytest.mark.parametrize(('name', 'spare'), CASES)
def test_a_table_with_more_rows_than_ids(make, data, name, spare):
  folder, theirs = make(name, spare)
  model, vocab = plm_jax.load(folder), tokenizer.load(folder)
  assert model.encode(TEXT).shape == (16,)
  if model.folder.kind == 'bidirectional' and name != 'xlnet-lm':
    filled = dict(model.fill('Anna is in the [MASK]', top=runs.VOCAB_SIZE + spare).blanks[0])
    score = model.score(TEXT).pseudo_log_likelihood
    assert np.isfinite(score) and 0 < sum(filled.values()) < 0.9  # most of the probability is of rows without a token
    if name != 'deberta-decoder':  # whose mask decoder transformers does not compute
      ids = [vocab.cls_id, *vocab.encode('Anna is in the <mask>', specials=True), vocab.sep_id]
      with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([ids])).to_tuple()[0][0, ids.index(vocab.mask_id)]
      expected = torch.softmax(logits, -1)[: runs.VOCAB_SIZE].sort(descending=True).values.numpy()
      np.testing.assert_allclose(
        [p for _, p in model.fill('Anna is in the [MASK]', top=5).blanks[0]], expected[:5], rtol=1e-3
      )
  for method in ('greedy', 'sample', 'beam') if name in ('gpt2', 't5', 'bart', 'llama') else ():
    ((written,),) = continued.write(model.folder, [TEXT], {**settings.DEFAULTS, 'max_new': 8, 'method': method})
    assert max(written.ids) < runs.VOCAB_SIZE
  # training begins with every parameter of the folder, and an evaluation reads it as it is
  plain = runs.settings('mlm', data, objective=OBJECTIVES.get(name, MLM), best=None)
  found, report = started(plain, folder)
  assert not report.new or (name == 'deberta-decoder' and report.new == ())
  _, params = model_of(folder, plain)
  for path, leaf in found.items():
    if path.endswith('/bias') and leaf.shape == (runs.VOCAB_SIZE,):
      head = params[path.partition('/')[0]]['bias']
      assert len(head) == runs.VOCAB_SIZE + spare
      np.testing.assert_array_equal(leaf, head[: runs.VOCAB_SIZE])


def test_a_generator_never_samples_rows_beyond_the_tokenizer(make):
  folder, _ = make('electra-generator', 16)
  opened = plm_jax.load(folder).folder
  made = rtd.make(trunk=opened.trunk, vocab=opened.vocab, sharing='all')
  batch = {
    'tokens': np.full((2, 12), 60, np.int32), 'segment_ids': np.ones((2, 12), np.int32),
    'step': np.zeros(2, np.int32), 'row_id': np.arange(2, dtype=np.int32), 'row_weight': np.ones(2, np.float32),
  }  # fmt: skip
  example = made.prepare(jax.random.key(0), batch)
  logits = np.zeros((*example.inputs['predict'].shape, runs.VOCAB_SIZE + 16), np.float32)
  logits[..., runs.VOCAB_SIZE :] = 50
  _, sampled = rtd.replace(made.prepare.args[0], logits, example)
  assert sampled.max() < runs.VOCAB_SIZE


def test_only_rows_of_no_token_are_left_out():
  source = {'trunk/token_embed/table': np.ones((8, 2), np.float32), 'mlm/bias': np.arange(8, dtype=np.float32)}
  fresh = {'trunk': {'token_embed': {'table': np.zeros((8, 2), np.float32)}}, 'mlm': {'bias': np.zeros(6, np.float32)}}
  fresh = jax.tree.map(jnp.asarray, fresh)

  def begin(size):
    entry = {'source': 'folder', 'from_': '', 'to': ''}
    saved = in_memory(source, where='folder')
    return initialise(fresh, [entry], open_params=lambda *_, **__: saved, vocab_size=lambda _: size)

  params, report = begin(5)
  np.testing.assert_array_equal(params['mlm']['bias'], np.arange(6))
  assert 'without rows 6 to 7, which no token has' in report.restored['mlm/bias']
  for size in (7, None):  # rows that have a token, or whose tokens are unknown
    with pytest.raises(ValueError, match='mlm/bias'):
      begin(size)
