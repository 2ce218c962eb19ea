"""The taxonomy against the figure of its survey, and against the `PAPER` of every file."""

import importlib
import json

import pytest

from plm_jax.commands import params
from plm_jax.config import signatures, taxonomy
from plm_jax.core.errors import ConfigError

# Qiu et al. 2020, Figure 3: where it puts systems that stand in files here; 'co-occurrence' for GloVe is ours
SURVEY = {
  ('objectives', 'glove'): ('non-contextual', 'static', 'co-occurrence', 'unsupervised', None),
  ('objectives', 'skipgram'): ('non-contextual', 'static', 'contrastive', 'self-supervised', None),
  ('models', 'elmo'): ('contextual', 'lstm', 'autoregressive', 'self-supervised', None),
  ('models', 'cove'): ('contextual', 'lstm', 'supervised', 'supervised', None),
  ('models', 'bert'): ('contextual', 'encoder', 'denoising', 'self-supervised', None),
  ('models', 'albert'): ('contextual', 'encoder', 'denoising', 'self-supervised', 'compressed'),  # shared layers
  ('models', 'xlnet'): ('contextual', 'encoder', 'permutation', 'self-supervised', None),
  ('models', 'gpt'): ('contextual', 'decoder', 'autoregressive', 'self-supervised', None),
  ('models', 'bart'): ('contextual', 'encoder-decoder', 'denoising', 'self-supervised', None),
  ('models', 't5'): ('contextual', 'encoder-decoder', 'denoising', 'self-supervised', None),
  ('objectives', 'sentence_pair'): ('contextual', 'encoder', 'contrastive', 'self-supervised', None),
  ('objectives', 'rtd'): ('contextual', 'encoder', 'contrastive', 'self-supervised', None),
  ('objectives', 'distill'): ('contextual', 'encoder', 'denoising', 'self-supervised', 'compressed'),
}
WAYS = ('representation', 'architecture', 'task', 'supervision', 'extension')


def test_systems_stand_where_the_survey_puts_them() -> None:
  rows = {(row['kind'], row['name']): row for row in taxonomy.rows()}
  for place, ways in SURVEY.items():
    assert tuple(rows[place][way] for way in WAYS) == ways, place


@pytest.mark.parametrize('kind', taxonomy.KINDS)
def test_every_file_has_the_row_that_its_paper_says(kind: str) -> None:
  rows = {row['name']: row for row in taxonomy.rows() if row['kind'] == kind}
  assert set(rows) == set(signatures.names(kind))
  for name, row in rows.items():
    paper = importlib.import_module(f'plm_jax.{kind}.{name}').PAPER
    told = (row['architecture'], row['task'], row['supervision'], row['extension'], row['year'], row['paper'])
    assert told == (
      paper.architecture, paper.objective_family, paper.supervision, paper.extension, paper.year, paper.title,
    )  # fmt: skip
    assert row['adapters'] == list(paper.adapters)
    assert (row['task'] == 'supervised') == (row['supervision'] == 'supervised'), f'{name} contradicts itself'


def test_values_are_choices_of_the_type() -> None:
  known = signatures.keywords('core.types', 'Paper')
  for row in taxonomy.rows():
    for field, way in (('architecture',) * 2, ('objective_family', 'task'), ('supervision',) * 2):
      assert repr(row[way]) in known[field].annotation, (row['name'], field)
    assert row['extension'] is None or repr(row['extension']) in known['extension'].annotation


def test_it_is_printed_as_json_as_markdown_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
  assert params.main(['--taxonomy', '--json']) == 0
  assert json.loads(capsys.readouterr().out) == taxonomy.rows()
  assert params.main(['--taxonomy', '--md']) == 0
  lines, _, below = capsys.readouterr().out.partition('\n\n')
  assert below.splitlines() == taxonomy.not_here()
  lines = lines.splitlines()
  assert len(lines) == 2 + len(taxonomy.rows())
  assert {line.count('|') for line in lines} == {1 + len(taxonomy.COLUMNS)}
  assert params.main(['--taxonomy']) == 0
  said = capsys.readouterr().out
  assert 'hierarchical_softmax' in said
  assert '- knowledge-enriched models (ERNIE, KnowBERT, K-BERT): out of scope' in said


def test_what_the_survey_has_and_no_file_is_for_is_said() -> None:
  kinds = signatures.keywords('core.types', 'Paper')['extension'].annotation
  said, used = ' '.join(taxonomy.NOT_HERE), {row['extension'] for row in taxonomy.rows()}
  for kind in ('knowledge-enriched', 'multilingual', 'multi-modal', 'domain-specific', 'compressed'):
    assert repr(kind) in kinds
    assert (kind in said) != (kind in used), kind


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (['--md'], '--md .*--taxonomy'),
    (['--taxonomy', '--md', '--json'], '--md .* without --json'),
    (['--taxonomy', '--config=experiments/bert/base.py'], '--taxonomy .*--config'),
    (['--taxonomy', '--workdir=tests/fixtures/bert_mlm/run'], '--taxonomy .*--config'),
    (['--all', '--config=experiments/bert/base.py'], '--all counts every published size'),
    (['--print_config'], 'needs --config=FILE'),
    (['--workdir=nowhere'], 'there is no such folder'),
  ],
)
def test_words_that_do_not_go_together_are_refused(words: list[str], said: str) -> None:
  with pytest.raises(ConfigError, match=said):
    params.main(words)
