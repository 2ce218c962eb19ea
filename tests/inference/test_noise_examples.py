"""The page of objectives: output of each, its agreement with the noise, rates, wrong commands."""

import pathlib
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from plm_jax import config
from plm_jax.commands import noise as noise
from plm_jax.core.errors import ConfigError
from plm_jax.inference.noise_examples import GALLERY

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = [show.name for show in GALLERY]
WORDS = [first + second for first in ('ba', 'ko', 'mi', 'su', 'te') for second in ('l', 'n', 'r', 's', 't')]
TEXT = 'One two three four . Five six seven eight nine ten .'
ALWAYS = ('causal_lm', 'bert', 'nsp', 't5')  # the others are long tests


def page(monkeypatch, capsys, *words: str) -> str:
  monkeypatch.setenv('COLUMNS', '2000')  # no line is broken
  assert noise.main(words) == 0
  return capsys.readouterr().out


def lines(text: str) -> dict[str, list[str]]:
  """Group the lines of a page by label."""
  found: dict[str, list[str]] = {}
  for line in text.splitlines():
    if match := re.match(r' +([a-z][a-z ]*?)  (.*\S)', line):
      found.setdefault(match[1], []).append(match[2].strip())
  return found


@pytest.mark.parametrize('name', [pytest.param(n, marks=[] if n in ALWAYS else pytest.mark.slow) for n in NAMES])
def test_every_objective_prints(name, monkeypatch, capsys):
  text = page(monkeypatch, capsys, f'--objective={name}', '--rows=20', f'--text={TEXT}')
  assert f'{name}  {next(show.what for show in GALLERY if show.name == name)}' in text
  found = lines(text)
  assert found['text'] == [TEXT]
  assert any(label.endswith(('reads', 'copy', 'pair')) for label in found)
  assert found['measured'][0].endswith('(mean of 20 rows)')
  assert text.count('measured') == 1


def test_masked_and_predicted_tokens_are_those_of_the_text(monkeypatch, capsys):
  found = lines(page(monkeypatch, capsys, '--objective=bert', '--draws=3', '--rows=4'))
  text = ['[CLS]', *found['text'][0].split(), '[SEP]']
  assert len(set(found['reads'])) == 3  # each draw another
  for reads, predicts in zip(found['reads'], found['predicts'], strict=True):
    items = [(int(place), token) for place, token in re.findall(r'(\d+) (\S+)', predicts)]
    assert len(items) == round(0.15 * (len(text) - 2))
    assert all(text[place] == token for place, token in items)
    for place, token in enumerate(reads.split()):
      assert token == text[place] or place in dict(items)


def test_sentinels_stand_for_what_the_decoder_writes(monkeypatch, capsys):
  found = lines(page(monkeypatch, capsys, '--objective=t5', '--rows=4'))
  filled, current = {}, ''
  for token in found['predicts'][0].split()[:-1]:  # without the end
    if token.startswith('<extra_id_'):
      current = token
      filled[current] = []
    else:
      filled[current].append(token)
  out = [word for token in found['encoder reads'][0].split()[:-1] for word in filled.get(token, [token])]
  assert ' '.join(out) == found['text'][0]
  assert found['decoder reads'][0].split()[1:] == found['predicts'][0].split()[:-1]


def test_measured_rates_of_a_long_text_are_those_of_the_papers(monkeypatch, capsys):
  draw = random.Random(0)
  text = ' '.join(draw.choice(WORDS) for _ in range(300))  # of which 120 tokens are taken
  found = lines(page(monkeypatch, capsys, '--objective=bert', '--rows=300', f'--text={text}'))
  assert len(found['text'][0].split()) == 120
  changed, targets = (float(share) for share in re.findall(r'([\d.]+)%', found['measured'][0]))
  assert targets == pytest.approx(15, abs=0.4)  # 18 of the 122
  assert changed == pytest.approx(0.9 * targets, abs=0.5)
  found = lines(page(monkeypatch, capsys, '--objective=t5', '--rows=300', f'--text={text}'))
  reads = [float(count) for count in re.findall(r'reads ([\d.]+) of 120', found['measured'][0])]
  assert reads == [120 - 18 + 6 + 1, 18 + 6 + 1]  # spans of 3 that hold 15 %, and an end


@pytest.mark.slow
def test_all_is_one_page(monkeypatch, capsys):
  text = page(monkeypatch, capsys, '--all', '--rows=4')
  assert re.findall(r'^(\w+)  .* ─+$', text, re.MULTILINE) == NAMES
  assert len(lines(text)['text']) == 1
  assert len(lines(text)['measured']) == len(NAMES)


# keywords of an objective that do not change what a page shows, and why
NOT_SHOWN = {
  'masking', 'copies',  # samples of the page differ
  'generator',  # a tiny one
  'start', 'end', 'mask', 'sentence_mask', 'document_mask', 'block_token',  # names of a vocabulary's tokens
  'subsample', 'update', 'reduction', 'negatives', 'factor',  # of long texts, of the optimiser
  'slots', 'logit_rows', 'packing',  # of long rows, of the loss, of several documents
}  # fmt: skip
LEVELS = {'glm_sentence': 'sentence', 'glm_document': 'document'}  # one of the three that the config mixes


def shown_settings(objective) -> dict:
  settings = {key: value for key, value in objective.items() if key not in NOT_SHOWN}
  if objective['name'] == 'denoise_seq2seq':
    settings['start'] = objective['start']
  if 'where' in settings:  # a bound for rows that are longer than a page
    settings['where'] = {key: value for key, value in settings['where'].items() if key != 'max_count'}
  return settings


@pytest.mark.parametrize('name', NAMES)
def test_the_page_shows_what_the_config_trains(name):
  show = next(show for show in GALLERY if show.name == name)
  if not show.config:
    assert name == 'whole_word'
    return
  settings = config.load(str(ROOT / 'experiments' / show.config))
  theirs = shown_settings(config.resolve(settings)['objective'])
  ours = shown_settings(config.resolve({**settings, 'objective': dict(show.objective)})['objective'])
  if name in LEVELS:
    assert ours.pop('levels').keys() == {LEVELS[name]} <= theirs.pop('levels').keys()
  assert ours == theirs


def test_masks_show_what_a_token_may_look_at(monkeypatch, capsys):
  text = page(monkeypatch, capsys, '--objective=xlnet', '--rows=4', f'--text={" ".join(WORDS[:12])}')
  seen = np.array([[cell == '■' for cell in row] for row in re.findall(r'^ +([■·]+) *$', text, re.MULTILINE)])
  targets = [int(number) for number in re.findall(r'(\d+) \S+', lines(text)['predicts'][0])]
  assert seen.shape == (14, 14) and targets
  assert not seen[targets, targets].any()  # a query does not see the token that it predicts
  assert all(seen[target].any() for target in targets)


def test_words_pairs_and_directions_are_shown(monkeypatch, capsys):
  words = WORDS[:6]
  flags = ('--rows=4', f'--text={" ".join(words)}')
  for name in ('skipgram', 'cbow'):
    for pair in lines(page(monkeypatch, capsys, f'--objective={name}', *flags))['pair']:
      read, centre = pair.partition(' and not ')[0].split(' → ')
      assert {*read.split(), centre} <= {*words} and centre not in read.split()
  pairs = lines(page(monkeypatch, capsys, '--objective=glove', *flags))['pair']
  assert (words[0], words[1]) in {tuple(pair.split()[:2]) for pair in pairs if 'count 0.00' in pair}  # one apart: 1
  found = lines(page(monkeypatch, capsys, '--objective=elmo', *flags))
  assert found['forward reads'] == [' '.join(['<s>', *words])]
  assert found['backward reads'] == [' '.join(['</s>', *words[::-1]])]
  assert found['predicts'] == [' '.join([*words, '</s>']), ' '.join([*words[::-1], '<s>'])]


def test_labels_of_electra_are_those_of_its_tokens(monkeypatch, capsys):
  found = lines(page(monkeypatch, capsys, '--objective=electra', '--rows=4', f'--text={" ".join(WORDS[:30])}'))
  before, after = ['[CLS]', *WORDS[:30], '[SEP]'], found['reads'][0].split()
  assert found['labels'][0].split() == [str(int(a != b)) for a, b in zip(before, after, strict=True)]
  written = re.findall(r'(\d+) (\S+)', found['generator fills'][0])
  assert written and all(after[int(place)] == word for place, word in written)


def test_bart_masks_a_word_by_one_token(monkeypatch, capsys):
  found = lines(page(monkeypatch, capsys, '--objective=bart_mask', '--rows=4', '--text=un ##believ ##able ##ness'))
  assert found['encoder reads'][0].split() == ['[CLS]', '[MASK]', '[SEP]']


def test_names_are_told_apart():
  assert len(set(NAMES)) == len(NAMES)


def test_an_unknown_objective_is_refused_with_near_names_before_jax_is_loaded():
  program = """
import runpy, sys
sys.argv = ['plm-jax', 'noise', '--objective=brat']
try:
  runpy.run_module('plm_jax', run_name='__main__')
except SystemExit as error:
  code = error.code
loaded = {'jax', 'flax', 'optax'} & set(sys.modules)
assert not loaded, loaded
sys.exit(code)
"""
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False)
  assert done.returncode == 2, done.stderr
  assert '--objective=brat' in done.stderr and "Did you mean 'bert' or 'bart'?" in done.stderr
  assert all(name in done.stderr for name in NAMES)
  assert 'Traceback' not in done.stderr


def test_a_text_too_short_for_one_objective_does_not_end_the_page(monkeypatch, capsys):
  short = '--text=One two three four .'
  with pytest.raises(ConfigError, match='one_in=6'):
    noise.main(['--objective=xlnet', '--rows=2', short])
  capsys.readouterr()
  monkeypatch.setattr(noise, 'GALLERY', tuple(show for show in GALLERY if show.name in ('causal_lm', 'xlnet')))
  found = lines(page(monkeypatch, capsys, '--all', '--rows=2', short))
  assert 'one_in=6' in found['error'][0]
  assert len(found['measured']) == 1


def test_too_many_draws_and_a_text_of_three_tokens_are_refused(capsys):
  with pytest.raises(ConfigError, match=r'--(draws|num_samples)\b.*10_000'):
    noise.main(['--objective=bert', '--draws=1000000000'])
  with pytest.raises(ConfigError, match=r'--text.*\b3 tokens.*\b4\b'):
    noise.main(['--text=far too short'])
