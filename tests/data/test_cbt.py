"""The Children's Book Test in its published form becomes rows that the stock config reads."""

import pytest

from launch import cbt
from plm_jax import config
from plm_jax.config import build

QUERY = '21 She gave the XXXXX a bone .\tdog\t\tcat|dog|moon'


def text_of(query=QUERY, sentences=20):
  return '\n'.join([*(f'{n} Sentence {n} is here .' for n in range(1, sentences + 1)), query, ''])


def test_the_published_form_is_read_by_the_stock_config(tmp_path):
  source, target = tmp_path / 'cbtest.txt', tmp_path / 'cbt' / 'test.jsonl'
  source.write_text('\n'.join([text_of(), text_of(QUERY.replace('dog\t', 'cat\t'))]))
  cbt.main(str(source), str(target))
  settings = config.load('experiments/gpt/prompt.py:cbt')
  block = config.resolve(settings)['eval']['test']['data']
  labels = build.look({**block, 'path': str(target.parent), 'split': 'test', 'shots': None})
  assert labels.rows == 2
  records = [labels.record(row) for row in range(2)]
  assert [record['label'] for record in records] == [1, 0]
  assert records[0]['options'] == ('cat a bone .', 'dog a bone .', 'moon a bone .')
  assert records[0]['inputs'].startswith('Sentence 1 is here . Sentence 2')
  assert records[0]['inputs'].endswith('Sentence 20 is here . She gave the')


@pytest.mark.parametrize(
  ('text', 'says'),
  [
    (text_of(sentences=19), 'line 20: expected "20 TEXT"'),
    (text_of('21 She gave the XXXXX\tdog'), 'line 21: .*candidates'),
    (text_of(QUERY.replace('XXXXX', 'dog')), 'line 21: no XXXXX'),
    (text_of(QUERY.replace('dog\t', 'fox\t')), "'fox' is no candidate"),
    ('', '0 of 21 lines'),
  ],
)
def test_damaged_text_is_refused_with_its_line(tmp_path, text, says):
  (tmp_path / 'a.txt').write_text(text)
  with pytest.raises(SystemExit, match=says):
    cbt.main(str(tmp_path / 'a.txt'), str(tmp_path / 'out.jsonl'))
  assert not (tmp_path / 'out.jsonl').exists()
