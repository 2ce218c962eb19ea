"""Blanks filled by an encoder-decoder: the spans of its output, and the table of a run."""

import re

import pytest

import plm_jax
from plm_jax.commands import fill
from plm_jax.core.errors import ConfigError
from plm_jax.generate import decode
from plm_jax.inference import fill_spans
from plm_jax.training import loop
from tests import runs

SENTINELS = ('<extra_id_0>', '<extra_id_1>', '<extra_id_2>')
ENDS = {1, 90, 91, 92}


@pytest.mark.parametrize(
  ('ids', 'expected'),
  [
    ([90, 5, 6, 91, 7, 92, 1], [(1, 3), (4, 5)]),
    ([90, 91, 7, 1], [(1, 1), (2, 3)]),
    ([91, 7, 8, 90, 5], [(4, 5), (1, 3)]),
    ([5, 6, 90, 7], [(3, 4), (4, 4)]),
    ([], [(0, 0), (0, 0)]),
  ],
)
def test_spans_stand_after_their_sentinels(ids, expected):
  assert fill_spans.after_sentinels(ids, [90, 91], ENDS) == expected


@pytest.mark.parametrize(
  ('prompt', 'ids', 'expected'),
  [
    ([5, 6, 4, 7, 8], [5, 6, 20, 21, 7, 8], [(2, 4)]),
    ([5, 6, 4, 7, 8], [5, 6, 7, 8], [(2, 2)]),
    ([4, 6, 7, 4], [20, 6, 7, 21, 22], [(0, 1), (3, 5)]),
    ([5, 4, 6, 4, 7], [5, 20, 6, 21, 22, 7], [(1, 2), (3, 5)]),
    ([5, 4, 6], [20, 21], [(0, 2)]),
  ],
)
def test_masks_are_found_again_in_the_whole_text(prompt, ids, expected):
  assert fill_spans.spans_of_masks(prompt, ids, 4) == expected


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """Train short runs of T5 and BART."""
  folder = runs.write_data(tmp_path_factory.mktemp('written'))
  t5 = {'where': {'name': 'fixed_count', 'rate': 0.15}}
  bart = {'where': {'name': 'poisson_spans'}, 'edit': {'name': 'collapse_to_mask'}, 'target': 'text', 'start': 'eos'}
  sizes = {name: size for name, size in runs.SIZES.items() if name != 'max_length'}
  models = {
    't5': (t5, {'name': 't5', 'variant': 't5-small', 'overrides': sizes | {'head_dim': 8}}, SENTINELS),
    'bart': (bart, {'name': 'bart', 'variant': 'tiny', 'overrides': sizes | {'max_length': 48}}, ()),
  }
  for name, (objective, model, extra) in models.items():
    given = {'objective': objective, 'model': model, 'vocab': {'extra': extra}, 'data': {'layout': 'rows'}, 'steps': 2}
    assert loop.train(runs.settings('denoise_seq2seq', folder, **given), folder / name).exit_code == 0
  return folder


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'blank'), [('t5', '[MASK]'), ('t5', '<extra_id_{}>'), ('bart', '[MASK]'), ('bart', '<mask>')]
)
def test_a_row_for_each_blank(made, name, blank, capsys):
  text = f'Anna is {blank.format(0)} the {blank.format(1)}.'
  assert fill.main([f'--workdir={made / name}', f'--text={text}']) == 0
  out = capsys.readouterr().out
  rows = [line.strip('│').split('│') for line in out.splitlines() if re.match(r'│ *\d', line)]
  assert [int(row[0]) for row in rows] == [1, 2]
  assert all(re.search(r' [01]\.\d\d *$', row[1]) for row in rows)
  assert out.count('<extra_id_' if name == 't5' else '<mask>') >= 2  # the title has them as the model reads them


@pytest.mark.slow
def test_a_text_without_a_blank_is_refused(made):
  for name, blank in (('t5', '<extra_id_0>'), ('bart', '<mask>')):
    with pytest.raises(ConfigError, match=f'blank.*{blank}'):
      fill.main([f'--workdir={made / name}', '--text=Anna is here.'])
  with pytest.raises(ConfigError, match="'<extra_id_7>'"):
    fill.main([f'--workdir={made / "t5"}', '--text=Anna <extra_id_7>.'])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['t5', 'bart'])
def test_texts_are_filled_together_as_each_alone(made, name):
  texts = ['[MASK] is here.', 'Anna is in the [MASK] and [MASK] is not.', 'One [MASK]', 'In the [MASK] garden.']
  model = plm_jax.load(made / name, batch_size=4)
  decode._run.clear_cache()
  fill_spans.chances.clear_cache()
  together = model.fill(texts)
  assert decode._run._cache_size() <= 2 and fill_spans.chances._cache_size() <= 2
  for one, alone in zip(together, map(model.fill, texts), strict=True):
    assert one.text == alone.text and len(one.blanks) == len(alone.blanks)
    for ((word, share),), ((expected, chance),) in zip(one.blanks, alone.blanks, strict=True):
      assert (word, share) == (expected, pytest.approx(chance, rel=1e-4))


def test_blanks_of_two_kinds_are_refused():
  with pytest.raises(ConfigError, match=r'\[MASK\].*<extra_id_0>'):
    fill_spans.number_blanks('Thank [MASK] me to <extra_id_0> party', None)
