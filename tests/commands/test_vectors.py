"""The command: what it prints of a file and of a run, and what it refuses."""

import gzip
import math

import numpy as np
import pytest

from plm_jax import config
from plm_jax.commands import vectors
from plm_jax.core.errors import ConfigError
from plm_jax.inference import nearest
from plm_jax.text import words
from plm_jax.training import loop
from plm_jax.weights import word_vectors
from plm_jax.weights.word_vectors import WordVectors

pytestmark = pytest.mark.turns

WORDS = ('man', 'woman', 'king', 'queen', 'apple')
ROWS = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [-1, 0.1, 0]], np.float32)


@pytest.fixture
def file(tmp_path):
  word_vectors.write(tmp_path / 'v.txt', WordVectors(WORDS, ROWS), form='word2vec')
  return tmp_path / 'v.txt'


def ask(capsys, *flags):
  assert vectors.main(list(flags)) == 0
  return capsys.readouterr().out


def test_answers(file, tmp_path, capsys):
  assert [
    line.split()[1] for line in ask(capsys, 'neighbours', f'--file={file}', '--words=queen', '--top=2').splitlines()
  ] in (['woman', 'king'], ['king', 'woman'])
  assert ask(capsys, 'analogy', f'--file={file}', '--words=man,king,woman').split()[1] == 'queen'
  assert ask(capsys, 'similarity', f'--file={file}', '--words=man,king').strip() == f'{2**-0.5:.4f}'
  (tmp_path / 'q').write_text(': family\nMan King Woman Queen\nman woman boy girl\n: fruit\nman king apple queen\n')
  printed = ask(capsys, 'analogy', f'--file={file}', f'--questions={tmp_path / "q"}')
  assert '1 of 1 known of 2' in printed and ' 2 known of 3' in printed.splitlines()[-1]
  (tmp_path / 'p').write_text(
    '# people\nWord 1\tWord 2\tmean\nman\twoman\t7\nking\tapple\t1\nman\tboy\t9\nman\tqueen\t6\n'
  )
  assert 'Spearman 1.0000 over 3 of 4 pairs' in ask(capsys, 'similarity', f'--file={file}', f'--pairs={tmp_path / "p"}')


def test_a_mark_before_a_text_and_odd_ends_of_lines_are_no_words(file, tmp_path, capsys):
  (tmp_path / 'q').write_text('\ufeff: family\nman\x85king woman queen\n')
  assert '1 of 1 known of 1' in ask(capsys, 'analogy', f'--file={file}', f'--questions={tmp_path / "q"}')
  (tmp_path / 'p').write_text('\ufeffman\twoman\t7\r\nking\tapple\t1\r\nman\tqueen\t6\r\n')
  assert 'over 3 of 3 pairs' in ask(capsys, 'similarity', f'--file={file}', f'--pairs={tmp_path / "p"}')


def test_pairs_may_stand_between_commas(file, tmp_path, capsys):
  """As in the published WordSim-353, `combined.csv`."""
  (tmp_path / 'p').write_text('Word 1,Word 2,Human (mean)\nman,woman,7\nking, apple ,1\nman,boy,9\nman,queen,6.5\n')
  assert 'Spearman 1.0000 over 3 of 4 pairs' in ask(capsys, 'similarity', f'--file={file}', f'--pairs={tmp_path / "p"}')


def test_a_file_has_the_form_that_its_name_says(file, tmp_path, capsys):
  content = {}
  for name in ('v.bin', 'v.bin.gz', 'v.vec.gz', 'v.vec'):
    assert '5 vectors of 3' in ask(capsys, 'save', f'--file={file}', f'--out={tmp_path / name}')
    assert np.array_equal(word_vectors.read(tmp_path / name).vectors, ROWS)
    content[name] = (tmp_path / name).read_bytes()
  assert content['v.vec'] == file.read_bytes() and content['v.bin'].startswith(b'5 3\nman \x00\x00\x80?')
  for name in ('v.bin', 'v.vec'):
    assert gzip.decompress(content[f'{name}.gz']) == content[name]
  (tmp_path / 'v.bin').write_bytes(content['v.vec'])
  with pytest.raises(ConfigError, match=r'v\.bin .*binary.*text'):
    vectors.main(['neighbours', f'--file={tmp_path / "v.bin"}', '--words=king'])


def test_what_has_no_other_word_says_so(tmp_path, capsys):
  word_vectors.write(tmp_path / 'v.txt', WordVectors(WORDS[:1], ROWS[:1]), form='word2vec')
  assert ask(capsys, 'neighbours', f'--file={tmp_path / "v.txt"}', '--words=man') == (
    'no other word: the table has 1 vector\n'
  )


def test_white_space_around_words_is_none_of_them(file, capsys):
  flags = ['similarity', f'--file={file}']
  assert ask(capsys, *flags, '--words= man , king ') == ask(capsys, *flags, '--words=man,king')


def test_a_word_may_have_a_comma(tmp_path, capsys):
  word_vectors.write(tmp_path / 'v.txt', WordVectors((',', '1,000', 'man'), ROWS[:3]), form='word2vec')
  for word in (',', '1,000'):
    assert 'man' in ask(capsys, 'neighbours', f'--file={tmp_path / "v.txt"}', f'--words={word}')


@pytest.mark.parametrize('asked', [['neighbours', '--words=King'], ['similarity', '--words=wing,King']])
def test_the_same_word_in_small_letters_is_suggested_first(asked, tmp_path):
  made = WordVectors(('Wing', 'King-', 'wing', 'king'), np.eye(4, dtype=np.float32))
  word_vectors.write(tmp_path / 'v.txt', made, form='word2vec')
  with pytest.raises(ConfigError, match=r"'King'.*\b4\b.*Did you mean 'king' or 'wing'"):
    vectors.main([*asked, f'--file={tmp_path / "v.txt"}'])


@pytest.mark.parametrize(
  ('words', 'out', 'said'),
  [
    (['project', '--words=a,b,c'], 'gone/p.png', 'no folder .*gone'),
    (['project', '--words=a,b,c'], 'p.xyz', r'--out=.*p\.xyz: .*\.xyz.*png'),
    (['save'], 'gone/v.txt', 'no folder .*gone'),
    (['polysemy', '--word=a', '--text=a'], 'p.xyz', r'--out=.*\.xyz'),
  ],
)
def test_where_nothing_can_be_written_is_said_before_a_run_is_opened(words, out, said, tmp_path):
  with pytest.raises(ConfigError, match=said):
    vectors.main([*words, '--workdir=no_such_run', f'--out={tmp_path / out}'])


def test_a_table_without_a_fourth_word_answers_no_analogy(tmp_path, capsys):
  word_vectors.write(tmp_path / 'v.txt', WordVectors(WORDS[:3], ROWS[:3]), form='word2vec')
  (tmp_path / 'q').write_text('man king woman king\n')
  printed = ask(capsys, 'analogy', f'--file={tmp_path / "v.txt"}', f'--questions={tmp_path / "q"}')
  assert '0 of 1 known of 1' in printed


@pytest.mark.parametrize(
  ('pairs', 'known'),
  [('man woman 7\nman boy 9\n', 1), ('man boy 9\n', 0), ('man king 3\nking apple 3\n', 2), ('man king 3\n' * 2, 2)],
)
def test_pairs_without_a_correlation_are_said_to_have_none(pairs, known, file, tmp_path, capsys):
  (tmp_path / 'p').write_text(pairs)
  printed = ask(capsys, 'similarity', f'--file={file}', f'--pairs={tmp_path / "p"}')
  assert f'{known} of {len(pairs.splitlines())} pairs' in printed and 'Spearman' not in printed


@pytest.mark.parametrize(
  ('pairs', 'said'),
  [
    ('Word 1\tWord 2\tmean\nman king\nman woman 7\n', 'p, line 2: '),
    ('man king x\nman woman y\nman queen 6\n', 'p, line 2: '),
    ('man king 3\nman woman nan\nking apple 1\n', "p, line 2: .*'nan'"),
    ('man king inf\nman woman 2\n', "p, line 1: .*'inf'"),
    ('man king 9,0\nman woman 2\n', 'p, line 1: '),
    (b'man king 9\ncaf\xe9 king 1\n', 'p, line 2 is not UTF-8.*iconv'),
  ],
)
def test_lines_of_pairs_that_are_no_judgement_are_named(pairs, said, file, tmp_path):
  (tmp_path / 'p').write_bytes(pairs if isinstance(pairs, bytes) else pairs.encode())
  with pytest.raises(ConfigError, match=said):
    vectors.main(['similarity', f'--file={file}', f'--pairs={tmp_path / "p"}'])


def test_a_word_that_begins_as_a_remark_does_is_a_word(tmp_path, capsys):
  word_vectors.write(tmp_path / 'v.txt', WordVectors(('#tag', *WORDS[1:3]), ROWS[:3]), form='word2vec')
  (tmp_path / 'p').write_text(f'# word 1\tword 2\tmean\n#tag {WORDS[1]} 4\n{WORDS[1]} {WORDS[2]} 1\n')
  printed = ask(capsys, 'similarity', f'--file={tmp_path / "v.txt"}', f'--pairs={tmp_path / "p"}')
  assert 'over 2 of 2 pairs' in printed


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('size', [1e-40, 1e-25, 1.0, 1e20, 3e38])
def test_cosines_are_those_of_vectors_of_any_length(size):
  rows = np.array([[size, 0], [size / 2, size / 2], [0, 0]], np.float32)
  table = nearest.Table(WordVectors(('king', 'queen', 'none'), rows))
  assert table.similarity('king', 'queen') == pytest.approx(math.sqrt(0.5), rel=1e-4)
  assert table.similarity('king', 'none') == 0


def test_the_nearest_are_those_of_a_sort_of_all_words_with_ties_by_id():
  rng = np.random.default_rng(0)
  rows = rng.integers(-1, 2, size=(60, 3)).astype(np.float32)  # many are alike, and some are 0
  table = nearest.Table(WordVectors(tuple(f'w{number}' for number in range(60)), rows))
  for target in (0, 1, 7):
    cosines = table.unit @ table.vector(f'w{target}')
    order = [number for number in np.argsort(-cosines, kind='stable') if number != target]
    for top in (0, 1, 5, 59, 100):
      found = [near.word for near in table.neighbours(f'w{target}', top=top)]
      assert found == [f'w{number}' for number in order[:top]]


def test_cosines_are_those_of_gensim(file):
  models = pytest.importorskip('gensim.models')
  theirs = models.KeyedVectors.load_word2vec_format(str(file))
  ours = nearest.Table(word_vectors.read(file))
  for word in WORDS:
    expected = theirs.most_similar(word, topn=4)
    assert [near.cosine for near in ours.neighbours(word, top=4)] == pytest.approx(
      [cosine for _, cosine in expected], abs=1e-6
    )


def test_a_run_of_fasttext_knows_unseen_words(tmp_path, capsys):
  """The nearest word to a plural that the text has not is its singular."""
  known = words.train(['the kitchen garden castle village forest river'], size=12, lowercase=True, min_frequency=1)
  known.save(tmp_path / 'vocab')
  (tmp_path / 'train.txt').write_text('the kitchen garden castle village forest river\n' * 40)
  one = {
    'steps': 2, 'log_every': 1, 'eval_every': 2, 'save_every': 2,
    'vocab': {'name': 'words', 'path': str(tmp_path / 'vocab')},
    'model': {'name': 'static', 'variant': 'tiny'},
    'objective': {'name': 'fasttext', 'buckets': 5000, 'subsample': 0.0},
    'data': {'name': 'stream', 'path': str(tmp_path), 'layout': 'stream', 'length': 16, 'batch_size': 4},
    'optim': {'name': 'adam', 'rate': 1e-2, 'schedule': 'constant', 'warmup': 0},
  }  # fmt: skip
  one['data']['cache'] = str(tmp_path / 'cache')
  assert loop.train(config.resolve(one), tmp_path / 'run').exit_code == loop.DONE
  for word, near in (('kitchens', 'kitchen'), ('villages', 'village')):
    printed = ask(capsys, 'neighbours', f'--workdir={tmp_path / "run"}', f'--words={word}', '--top=1')
    assert near in printed.split(), printed
  plain = ask(capsys, 'neighbours', f'--workdir={tmp_path / "run"}', '--words=kitchen', '--top=3')
  assert ask(capsys, 'neighbours', f'--workdir={tmp_path / "run"}', '--words=Kitchen', '--top=3') == plain
  plain, other = (
    ask(capsys, 'similarity', f'--workdir={tmp_path / "run"}', f'--words=the,{word}') for word in ('castles', 'CASTLES')
  )
  assert plain == other
  questions = tmp_path / 'questions.txt'  # a plural has a vector by its letters; what is found is a word of the table
  questions.write_text('kitchens kitchen castles castle\ncastles castle kitchens kitchens\n')
  said = ask(capsys, 'analogy', f'--workdir={tmp_path / "run"}', f'--questions={questions}')
  assert ' 1 known of 2' in said, said  # the second asks for a plural


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (['neighbours', '--words=king'], '--workdir.*--file'),
    (['neighbours', '--file=FILE'], '--words.*0.*1'),
    (['analogy', '--file=FILE', '--words=a,b'], '--words.*2.*3'),
    (['analogy', '--file=FILE'], '--words.*--questions'),
    (['similarity', '--file=FILE', '--words=a,b', '--pairs=x'], '--words.*--pairs'),
    (['neighbours', '--file=FILE', '--words=kin'], "'kin'.* 5"),
    (['neighbours', '--file=FILE', '--words=king', '--step=5'], '--step=5'),
    (['neighbours', '--file=none.txt', '--words=king'], '--file=none.txt'),
    (['neighbours', '--file=.', '--words=king'], '--file=. .*--workdir'),
    (['analogy', '--file=FILE', '--questions=none'], '--questions=none'),
    (['similarity', '--file=FILE', '--pairs=none'], '--pairs=none'),
    (['similarity', '--file=FILE', '--words=a,b', '--top=3'], '--top=3'),
    (['save', '--file=none.txt', '--out=o.bin', '--form=glove'], 'o.bin.*binary'),
    (['save', '--file=none.txt', '--out=o.gz', '--form=binary'], 'o.gz.*binary'),
    (['analogy', '--file=FILE', '--questions=ASKED'], 'asked.txt.*question'),
    (['similarity', '--file=FILE', '--pairs=ASKED'], 'asked.txt.*pair'),
  ],
)
def test_mistakes(words, said, file):
  asked = file.with_name('asked.txt')
  asked.write_text(': capitals\n')
  words = [word.replace('ASKED', str(asked)) for word in words]
  with pytest.raises(ConfigError, match=said):
    vectors.main([word.replace('FILE', str(file)) for word in words])
