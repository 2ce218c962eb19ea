"""`plm-jax generate` on runs and on folders of Hugging Face, and what it refuses."""

import pathlib
import sys

import numpy as np
import pytest
import rich.console

from plm_jax.commands import generate as command
from plm_jax.core.errors import ConfigError
from plm_jax.generate import settings
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

EXTRA = ('<|startofpiece|>', '<|endofpiece|>')
SHORT = ('--max_new=6',)


@pytest.fixture(scope='module')
def gpt(data: pathlib.Path) -> pathlib.Path:
  """A short run of GPT with a table of 32 positions."""
  assert loop.train(runs.settings('causal_lm', data), data / 'gpt').exit_code == 0
  return data / 'gpt'


@pytest.fixture(scope='module')
def glm(data: pathlib.Path) -> pathlib.Path:
  """A short run of GLM."""
  settings = runs.settings(
    'mlm',
    data,
    steps=4,
    vocab={'extra': EXTRA},
    model={'name': 'glm', 'variant': 'tiny'},
    objective={'name': 'blank_infilling', 'start': EXTRA[0], 'end': EXTRA[1]},
    data={'layout': 'rows'},
  )
  assert loop.train(settings, data / 'glm').exit_code == 0
  return data / 'glm'


def run(capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
  """The lines that the command prints."""
  assert command.main(flags) == 0
  return capsys.readouterr().out.splitlines()


def test_goes_on_with_prompts_of_different_lengths(gpt, capsys):
  prompts = ['In the morning Anna', 'One']
  lines = run(capsys, f'--workdir={gpt}', *(f'--prompt={prompt}' for prompt in prompts), *SHORT)
  texts, notes = lines[::2], lines[1::2]
  assert [text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True)] == [True, True]
  assert all(' tokens, score -' in note for note in notes)
  alone = run(capsys, f'--workdir={gpt}', f'--prompt={prompts[1]}', *SHORT)
  assert alone[0] == texts[1]


def test_draws_depend_on_the_seed(gpt, capsys):
  flags = (
    f'--workdir={gpt}',
    '--prompt=Anna',
    '--method=sample',
    '--num_samples=3',
    '--top_k=50',
    '--top_p=0.95',
    *SHORT,
  )
  first, again, other = run(capsys, *flags), run(capsys, *flags), run(capsys, *flags, '--seed=1')
  assert first == again != other
  assert len(set(first[::2])) == 3


def test_the_old_name_of_num_samples_is_accepted(gpt, capsys, caplog):
  flags = (f'--workdir={gpt}', '--prompt=Anna', '--method=sample', *SHORT)
  assert run(capsys, *flags, '--draws=2') == run(capsys, *flags, '--num_samples=2')
  assert [m for m in caplog.messages if '--draws' in m and '--num_samples' in m] == caplog.messages[:1]
  assert '--draws' not in command._parser().format_help()


def test_searches_with_forced_tokens(gpt, capsys):
  flags = ('--method=beam', '--beams=3', '--length_penalty=0.5', '--early_stop=true', '--no_repeat=2', '--min_new=2')
  lines = run(capsys, f'--workdir={gpt}', '--prompt=Anna', *flags, '--first=!', '--last=?', *SHORT)
  assert lines[0].startswith('Anna!')
  assert lines[0].endswith('?') or not lines[1].startswith('  6 tokens')


@pytest.mark.slow
def test_a_glm_fills_its_blank(glm, capsys):
  lines = run(capsys, f'--workdir={glm}', '--prompt=Anna is in the [MASK].', '--min_new=2', *SHORT)
  before, _, after = lines[0].partition('Anna is in the')
  assert (before, after[-1]) == ('', '.')
  assert 'MASK' not in lines[0]


@pytest.mark.slow
def test_refuses_a_prompt_without_or_with_two_blanks(glm):
  for prompt, count in (('Anna is here.', 0), ('[MASK] is [MASK].', 2)):
    with pytest.raises(ConfigError, match=rf'\b{count} blanks'):
      command.main([f'--workdir={glm}', f'--prompt={prompt}'])


def test_refuses_what_is_longer_than_the_table(gpt):
  with pytest.raises(ConfigError) as refused:
    command.main([f'--workdir={gpt}', '--prompt=Anna', '--max_new=40'])
  assert 'positions for 32 tokens' in str(refused.value)
  assert '--max_new is 40' in str(refused.value)


def test_refuses_a_token_that_is_not_there(gpt):
  with pytest.raises(ConfigError, match='no token'):
    command.main([f'--workdir={gpt}', '--prompt=Anna', '--first=nosuchtoken'])


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    ((), '--workdir=DIR or --weights=FOLDER'),
    (('--workdir=a', '--weights=b'), 'not both'),
    (('--workdir=nowhere',), 'no such folder'),
    (('--workdir=.', '--prompt= '), '--prompt.*empty'),
    (('--workdir=.', '--method=sample', '--top_p=1.5'), '--top_p=1.5'),
    (('--workdir=.', '--method=sample', '--temperature=0'), '--temperature=0'),
    (('--workdir=.', '--top_k=5'), '--top_k=5.*--method=sample'),
    (('--workdir=.', '--method=sample', '--beams=3'), '--beams=3.*--method=beam'),
    (('--workdir=.', '--num_samples=2'), '--num_samples=2.*--method=sample'),
    (('--workdir=.', '--draws=2'), '--num_samples=2.*--method=sample'),
    (('--workdir=.', '--draws=2', '--num_samples=2'), '--draws=2.*--num_samples'),
    (('--workdir=.', '--method=beam', '--beams=0'), '--beams=0'),
    (('--workdir=.', '--max_new=3', '--min_new=4'), '--min_new=4'),
    (('--workdir=.', '--no_repeat=-1'), '--no_repeat=-1'),
    (('--workdir=.', '--step=soon'), '--step=soon'),
    (('--workdir=.', '--method=sample', '--temperature=nan'), '--temperature=nan'),
    (('--workdir=.', '--seed=99999999999999999999'), '--seed=9+.*int'),
    (('--workdir=.', '--prompt=caf\udce9'), 'UTF-8'),
  ],
)
def test_refuses_flags_before_it_loads_anything(flags, words):
  with pytest.raises(ConfigError, match=words):
    command.main(['--prompt=Anna', *flags])


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'early_stop': 1}, "early_stop=1.*True, False or 'never'"),
    ({'early_stop': np.True_, 'method': 'beam'}, 'early_stop=.*True'),
    ({'method': ['beam']}, r"method=\['beam'\].*str"),
  ],
)
def test_settings_in_python_are_of_their_kinds(changes, said):
  with pytest.raises(ConfigError, match=said):
    settings.check({**settings.DEFAULTS, **changes}, ['a'])


def test_a_decoder_without_an_encoder_takes_no_token_to_start_with(gpt):
  with pytest.raises(ConfigError, match=r'--start=</s>.*encoder'):
    command.main([f'--workdir={gpt}', '--prompt=Anna', '--start=</s>'])


def test_what_goes_into_a_file_is_the_text_letter_by_letter(capsys):
  console = rich.console.Console(highlight=False)
  command._print(console, ('def f(x):\n\treturn', ' x\x08', ''), gap='', note='3 tokens')
  assert capsys.readouterr().out == 'def f(x):\n\treturn x\x08\n  3 tokens\n'


def test_mistakes_are_exit_code_2_and_load_no_jax(tmp_path):
  done = runs.command('generate', f'--workdir={tmp_path}', '--prompt=Anna', '--top_p=3', '--method=sample')
  assert (done.returncode, done.stdout) == (2, '')
  assert len(done.stderr.splitlines()) <= 2 and '--top_p=3.0' in done.stderr
  code = 'import sys, plm_jax.commands.generate; sys.exit("jax" in sys.modules)'
  assert runs.subprocess.run([sys.executable, '-c', code], cwd=conftest.ROOT, check=False).returncode == 0


def test_an_empty_folder_is_exit_code_2(tmp_path):
  done = runs.command('generate', f'--workdir={tmp_path}', '--prompt=Anna')
  assert done.returncode == 2
  assert len(done.stderr.splitlines()) <= 3 and str(tmp_path) in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('name', ['gpt2', 't5', 'bart'])
def test_folders_of_hugging_face_give_their_texts(name, data, tmp_path, capsys):
  """A random model saved by its own library with a tokenizer."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(data / 'vocab' / 'tokenizer.json'), bos_token='<s>', eos_token='</s>', pad_token='<pad>'
  )
  torch.manual_seed(0)
  size = {'vocab_size': len(tokenizer)}
  ids = {f'{role}_token_id': tokenizer.convert_tokens_to_ids(tokenizer.special_tokens_map[f'{role}_token'])
         for role in ('bos', 'eos', 'pad')}  # fmt: skip
  if name == 'gpt2':
    theirs = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **size, **ids)
    model = transformers.GPT2LMHeadModel(theirs)
  elif name == 't5':
    theirs = transformers.T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, **size, **ids)
    theirs.decoder_start_token_id = ids['pad_token_id']
    model = transformers.T5ForConditionalGeneration(theirs)
  else:
    sizes = {f'{side}_{what}': count for side in ('encoder', 'decoder') for what, count in
             (('layers', 2), ('attention_heads', 2), ('ffn_dim', 64))}  # fmt: skip
    theirs = transformers.BartConfig(d_model=32, max_position_embeddings=64, **sizes, **size, **ids)
    theirs.decoder_start_token_id = ids['eos_token_id']
    model = transformers.BartForConditionalGeneration(theirs)
  for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.4)
  model.eval().save_pretrained(tmp_path)
  tokenizer.save_pretrained(tmp_path)
  lines = run(capsys, f'--weights={tmp_path}', '--prompt=Anna is in the', '--max_new=5')
  given = tokenizer('Anna is in the').input_ids
  made = model.generate(torch.tensor([given]), max_new_tokens=5)[0].tolist()
  made = made[len(given) :] if name == 'gpt2' else made[1:]
  with pytest.raises(ConfigError, match=r'step=7.*run'):
    run(capsys, f'--weights={tmp_path}', '--prompt=Anna', '--step=7')
  assert _shown(lines[0]).endswith(_shown(tokenizer.decode(made, skip_special_tokens=True)))


def _shown(text: str) -> str:
  """Without spaces and what a terminal would act on."""
  return ''.join(letter for letter in text if letter.isprintable() and not letter.isspace())
