"""Table files: those that come with the package resolve at every scale, and mistakes are named."""

import pathlib

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.studies.tables import file, needs, runs
from plm_jax.training import parts
from tests import tiny

FILES = [name for name in file.table_files() if '/published_' not in name]  # `test_published.py` has these
LADDERS = ['bert_5', 'roberta_1', 'electra_5', 'gpt_5']  # beside the objectives
WITH_WORDS = [f'experiments/tables/small_{model}.py:medium' for model in ('bert', 'gpt', 'bart')]
GOOD = """
def get_table(scale):
  made = dict(config='experiments/quickstart/pretrain.py:quick')
  return dict(
    title='A', paper='B', mark='B',
    rows={'one': dict(made, published={'c': 1.0}), 'two': made},
    columns={'c': dict(metric='validation/loss', of='pretraining', better='min')},
    claims=[dict(column='c', better='one', than='two')],
  )
"""


def read(tmp_path, text, scale='tiny'):
  path = tmp_path / 'mine.py'
  path.write_text(text)
  return file.read(str(path), scale)


def plan(table, tmp_path):
  return runs.plan(table, runs.Places(tmp_path))


def test_there_are_tables():
  assert {'roberta_1', 'bart_1', 'albert_4', 't5_4'} <= {pathlib.Path(name).stem for name in FILES}


@pytest.mark.turns
@pytest.mark.parametrize('name', FILES + WITH_WORDS, ids=file.stem)
@pytest.mark.parametrize('scale', file.SCALES)
def test_every_run_of_a_table_has_a_sound_config(name, scale, tmp_path):
  table = file.read(name, scale)
  found = plan(table, tmp_path)
  filled = [row for row in table.rows.values() if not row.empty]
  made = [name for name, column in table.columns.items() if not column.empty and not column.over]
  assert len(found) == sum(name not in row.without for row in filled for name in made)
  assert all(len(by_seed) == table.pretraining_seeds for by_seed in found.values())
  assert len({run.digest for run in runs.needed(found)}) == len(runs.needed(found))


@pytest.mark.parametrize('name', FILES, ids=lambda name: pathlib.Path(name).stem)
def test_the_small_text_is_plain(name, tmp_path):
  """Files of text have no other field than 'text', whatever set of TFDS the config names."""
  for run in runs.needed(plan(file.read(name, 'small'), tmp_path)):
    if run.settings['data'].get('path') == 'runs/data/english':
      assert run.settings['data'].get('text') in (None, 'text')


@pytest.mark.parametrize('name', FILES, ids=lambda name: pathlib.Path(name).stem)
def test_rows_of_a_table_differ(name, tmp_path):
  """Each row has a pre-training of its own, or fine-tunes otherwise."""
  found = plan(file.read(name, 'small'), tmp_path)
  by_row = {}
  for cell, by_seed in found.items():
    by_row.setdefault(cell.row, []).append(tuple(run.digest for group in by_seed for run in group))
  assert len(set(map(tuple, by_row.values()))) == len(by_row)


@pytest.mark.parametrize('name', FILES, ids=file.stem)
@pytest.mark.parametrize('scale', file.SCALES)
def test_a_claim_is_of_what_a_scale_measures(name, scale):
  table = file.read(name, scale)
  asked = {claim.column for claim in table.claims}
  assert not [column for column in asked if table.columns[column].empty]
  assert not [claim for claim in table.claims if table.rows[claim.better].empty]


def counted(block):
  """Give classes, which a run counts, a number."""
  if not isinstance(block, dict):
    return block
  return {key: 2 if key == 'classes' and value is None else counted(value) for key, value in block.items()}


@pytest.mark.turns
@pytest.mark.parametrize('scale', ['paper', file.RUNGS[0]])
def test_runs_fit_the_trunk_that_they_start_from(scale, tmp_path):
  """So no table ends with a refusal after hours of pre-training."""
  unfit, seen = [], set()
  for name in FILES if scale == 'paper' else [f'experiments/tables/{name}.py' for name in LADDERS]:
    for run in runs.needed(plan(file.read(name, scale), tmp_path)):
      first = runs.pretraining_of(run)
      settings = {**run.settings, 'model': first.settings['model'], 'adapter': counted(run.settings['adapter'])}
      key = str([settings[block] for block in ('model', 'objective', 'adapter', 'data')])
      if key in seen or first.weights:
        continue
      seen.add(key)
      try:
        parts.make_parts(settings, tiny.VOCAB)
      except ConfigError as error:
        if 'vocab' not in str(error):
          unfit.append(f'{name}: {run.config}: {error}')
  assert not unfit and len(seen) > 10


@pytest.mark.parametrize(('name', 'count'), [('bert_5', 5), ('roberta_1', 5), ('bert_5', 1)])
def test_more_seeds_keep_those_that_are_made(name, count, tmp_path):
  path = f'experiments/tables/{name}.py'
  few, many, others = (
    plan(file.read(path, 'small', **words), tmp_path)
    for words in ({}, {'seeds': count}, {'seeds': count, 'first_seed': 100})
  )
  for cell, by_seed in few.items():
    both = [[run.digest for runs in one for run in runs] for one in (by_seed, many[cell])]
    shared = min(map(len, both))
    assert both[0][:shared] == both[1][:shared] and len(both[1]) == (1 if cell.column == 'tokens' else count)
    assert {run.settings['seed'] for runs in others[cell] for run in runs} == set(range(100, 100 + count))
    assert not set(both[1]) & {run.digest for runs in others[cell] for run in runs}


def test_claims_are_those_of_the_text():
  """Not the sign of every printed pair: SST-2 of ALBERT's next sentences, RoBERTa's segment pairs."""

  def claimed(name, scale='paper'):
    table = file.read(f'experiments/tables/{name}.py', scale)
    return {(claim.column, claim.better, claim.than) for claim in table.claims if not claim.asked}

  assert {column for column, *_ in claimed('albert_5')} == {'SQuAD F1', 'SQuAD 2.0', 'RACE'}
  assert not claimed('albert_5', 'small')
  pairs = {(better, than) for _, better, than in claimed('roberta_2')}
  segment, sentence, full, doc = 'SEGMENT-PAIR+NSP', 'SENTENCE-PAIR+NSP', 'FULL-SENTENCES', 'DOC-SENTENCES'
  assert pairs == {(segment, sentence), (doc, segment), (doc, full)}
  assert ('SST-2', 'BERT base', 'No NSP') not in claimed('bert_5')
  assert ('SST-2', 'No NSP', 'LTR & No NSP') in claimed('bert_5')


@pytest.mark.parametrize('name', LADDERS)
@pytest.mark.parametrize('scale', file.RUNGS)
def test_rungs_have_columns_that_decide(name, scale, tmp_path):
  table = file.read(f'experiments/tables/{name}.py', scale)
  found = plan(table, tmp_path)
  made = {column for column, about in table.columns.items() if not about.empty}
  assert {'SST-2', 'TREC', 'EWT probe'} <= made and not {'MRPC', 'CoLA', 'RTE', 'COPA'} & made
  assert 'bag of words' in table.columns['SST-2'].trivial and table.summary == 'best point on dev'
  if 'BLiMP' in made:  # and its phenomena, by one evaluation
    assert len([column for column in made if column.startswith('BLiMP, ')]) == 12
    pairs = {by_seed[0][0].digest for cell, by_seed in found.items() if cell.column.startswith('BLiMP')}
    assert len(pairs) == len({cell.row for cell in found if cell.column == 'BLiMP'})
  for cell, by_seed in found.items():
    run = by_seed[0][0]
    if cell.column in ('SST-2', 'TREC'):
      assert dict(run.settings['optim']['scale'])['trunk/.*'] == 0.1
      assert len({one.settings['optim']['rate'] for one in by_seed[0]}) == 3
    assert run.is_tuning is (cell.column != 'perplexity')  # its examples are predicted, also pairs and tokens
    if cell.column == 'EWT probe':
      assert run.settings['adapter']['frozen']
  models = [run.settings['model'] for run in runs.needed(found) if run.settings['objective'] and not run.evaluates]
  sizes = [model['overrides']['hidden_dim'] for model in models if model['name'] != 'awd_lstm']
  assert set(sizes) == {{'1m': 128, '5m': 256, '30m': 512}[scale]}


@pytest.mark.parametrize('scale', file.RUNGS)
def test_objectives_differ_in_nothing_else(scale, tmp_path):
  """The same text, vocabulary, tokens, optimiser and size of the trunk, and every column but none of the loss."""
  table = file.read('experiments/tables/objectives.py', scale)
  found = plan(table, tmp_path)
  assert len(table.rows) == 14 and {'BLiMP', 'EWT probe', 'SST-2', 'tokens'} <= set(table.columns)
  assert len(found) == 14 * len(table.columns)
  trained = set()
  for made in [found[cell][0][0].settings for cell in found if cell.column == 'tokens']:
    data, sizes = made['data'], made['model']['overrides']
    depth = sizes['num_layers'] + sizes.get('num_decoder_layers', 0)
    read = [data[key] for key in ('path', 'split', 'length', 'batch_size')] + [made['steps'], made['vocab']['path']]
    assert made['accumulate'] == 1 or made['objective']['name'] != 'contrastive'  # it couples the rows of a batch
    trained.add((*read, depth, sizes['hidden_dim'], sizes['mlp_dim'], sizes['dropout'], str(made['optim'])))
  assert len(trained) == 1


def test_baselines_of_babylm_have_the_means_of_the_challenge():
  for scale in file.SCALES:
    rows = file.read('experiments/tables/babylm_2023.py', scale).rows
    means = [row.published['BLiMP'] for row in rows.values()]
    assert means == [62.6, 69.5, 58.8, 75.3, 75.1, 56.0]
    assert [bool(row.empty) for row in rows.values()] == [False] * 3 + [scale != 'paper'] * 3


@pytest.mark.parametrize(
  ('name', 'scale', 'seeds'),
  [
    ('babylm_2023', 'tiny', (4, 1)),  # fine-tunes nothing
    ('roberta_1', 'tiny', (1, 4)),
    ('published_gpt2', 'published', (1, 4)),  # pre-trains nothing
  ],
)
def test_seeds_are_of_pretraining_where_nothing_is_fine_tuned(name, scale, seeds):
  table = file.read(f'experiments/tables/{name}.py', scale, seeds=4)
  assert (table.pretraining_seeds, table.tuning_seeds) == seeds


def test_missing_pairs_of_a_table_are_not_said_to_be_text_to_pretrain_on(tmp_path):
  head = 'experiments/tables/babylm_2023.py'
  runs_of = plan(file.read(head, 'paper'), tmp_path)
  asked = next(run for (group,) in runs_of.values() for run in group if run.evaluates)
  asked.settings['eval']['test']['data']['path'] = f'{tmp_path}/blimp_filtered'
  for other, fix in ((head, f'The header of {head} has the command'), ('x.py', 'folder of task data by --data=DIR')):
    (message,) = [line for line in needs._lacking(asked, other) if 'blimp_filtered' in line]
    assert fix in message and '--corpus' not in message


def test_heads_of_bart_are_as_wide_as_its_trunk_at_the_scale_of_the_paper(tmp_path):
  found = plan(file.read('experiments/tables/bart_1.py', 'paper'), tmp_path)
  heads = {run.settings['adapter'].get('hidden') for cell, ((run,),) in found.items() if cell.column == 'MNLI'}
  assert heads == {768, 0}  # BERT and GPT have one layer


@pytest.mark.parametrize('name', WITH_WORDS, ids=file.stem)
def test_words_behind_the_name_reach_the_table(name, tmp_path):
  medium, small = (plan(file.read(one, 'small'), tmp_path) for one in (name, name.partition(':')[0]))
  assert list(medium) == list(small)
  assert not {run.digest for run in runs.needed(medium)} & {run.digest for run in runs.needed(small)}


def test_words_that_a_table_does_not_take(tmp_path):
  (tmp_path / 'mine.py').write_text(GOOD)
  with pytest.raises(ConfigError, match=r"mine.py.*'large'"):
    file.read(f'{tmp_path}/mine.py:large', 'tiny')
  with pytest.raises(ConfigError, match=r"small_bert.py.*'large'"):
    file.read('experiments/tables/small_bert.py:large', 'tiny')
  for name in ('lora', 'bottlenecks', 'prefix', 'layers', 'compressed'):
    with pytest.raises(ConfigError, match=rf"minilm_{name}.py.*'tags'"):
      file.read(f'experiments/tables/minilm_{name}.py:tags', 'tiny')


@pytest.mark.parametrize('name', ['spanbert_6', 'spanbert_7'])
def test_objectives_of_spanbert_are_compared_at_equal_steps_and_under_one_optimiser(name, tmp_path):
  """As in the paper, whose tables have 1.2 million steps; one row of Table 7 is of a config of BERT."""
  table = file.read(f'experiments/tables/{name}.py', 'paper')
  found = {cell.row: runs.pretraining_of(by_seed[0][0]).settings for cell, by_seed in plan(table, tmp_path).items()}
  assert len(found) == {'spanbert_6': 5, 'spanbert_7': 3}[name]
  first, *others = ({key: one[key] for key in ('steps', 'optim', 'model', 'vocab')} for one in found.values())
  assert first['steps'] == 1_200_000
  assert all(one == first for one in others)


@pytest.mark.parametrize(
  ('name', 'config'),
  [('electra_5', 'electra/glue.py'), ('albert_5', 'albert/fine_tune.py'), ('spanbert_6', 'spanbert/squad.py')],
)
def test_a_paper_fine_tunes_by_its_own_recipe_at_its_scale(name, config):
  paper, small = (file.read(f'experiments/tables/{name}.py', scale) for scale in ('paper', 'small'))
  own = [
    column.configs[row.family] for row in paper.rows.values() for column in paper.columns.values() if column.configs
  ]
  assert any(one.startswith(f'experiments/{config}:') for one in own)
  assert {row.family for row in small.rows.values()} == {'bert'}


def test_tables_share_a_pretraining(tmp_path):
  folder = pathlib.Path(FILES[0]).parent
  first, second = (
    plan(file.read(str(folder / f'{name}.py'), 'small'), tmp_path) for name in ('roberta_2', 'corpus_cleaning')
  )
  assert {run.digest for run in runs.needed(first) if run.source is None} & {
    run.digest for run in runs.needed(second) if run.source is None
  }


@pytest.mark.parametrize(
  ('old', 'new', 'message'),
  [
    ("mark='B'", "mark='E'", "mark: expected Literal.*got str 'E'"),
    ("title='A', ", '', 'missing key title'),
    ("better='min'", "better='low'", "column 'c': better: expected Literal.*got str 'low'"),
    ("of='pretraining'", "off='pretraining'", "column 'c': unknown key off: did you mean of"),
    ("than='two'", "than='three'", "claims: .*row.*'three'"),
    ("better='min'", "better='min', trivial={'two': 1.0}", "column 'c': trivial: 'two'"),
    ("column='c'", "column='d'", "claims: .*column.*'d'"),
    ("claims=[dict(column='c', better='one', than='two')]", 'claims=None', "'claims'.*None"),
    ("'two': made", "'two': dict(made, published={'c': 0.5})", "'one'.*1 and 0.5"),
    ("published={'c': 1.0}", "published={'c': 1.0}, mark='E'", "row 'one': mark: expected Literal.*got str 'E'"),
    ("published={'c': 1.0}", "published={'c': 1.0}, marks={'d': 'A'}", "marks: .*column.*'d'"),
    ("published={'c': 1.0}", "published={'c': 1.0}, marks={'c': 'E'}", "row 'one': marks: .*'E'"),
    ("published={'c': 1.0}", "published={'d': 1.0}", "row 'one': published: .*'d'"),
    ("published={'c': 1.0}", 'published=3', "row 'one': published: expected Mapping"),
    ("published={'c': 1.0}", "published={'c': 'x'}", "row 'one': published: expected Mapping.*'x'"),
    ("'two': made", "'two': {}", "row 'two'.*config"),
    (", of='pretraining'", '', "column 'c'.*config.*'bert'"),
    ("metric='validation/loss', ", '', "column 'c'.*metric"),
    ('claims=', 'tuning_seeds=0, claims=', 'tuning_seeds|0 seeds'),
    ('claims=', "pretraining_seeds=2, summary='best on dev', claims=", "column 'c': summary='best on dev'.*chosen_by"),
    ("better='min'", "better='min', chosen_by=('validation/accuracy', 'max')", "column 'c': chosen_by: .*validation"),
    ("better='min'", "better='min', chosen_by=('test/loss', 'min')", "column 'c': chosen_by: .*test"),
    ("better='min'", "better='min', chosen_by=('dev/loss', 'low')", "chosen_by: expected.*'low'"),
    ("better='min'", "better='min', chosen_by='dev/loss'", 'chosen_by: expected'),
    ("better='min'", "better='min', along=('labels', 0)", "column 'c': along: 0"),
    ("better='min'", "better='min', along=('labels', 'many')", 'along: expected'),
    ("better='min'", "better='min', grid=[{'steps': 3}]", "column 'c': .*grid"),
    ("better='min'", "better='min', grid=[3]", 'grid: expected'),
    ('return dict(', 'return 3 or dict(', 'get_table returned int'),
    ('return dict(', 'return 1 / 0 or dict(', 'line 4: ZeroDivisionError'),
    ("'two': made", "'two': dict(made, keys={'seed': 7})", r"row 'two': keys: .*seed"),
    ("of='pretraining'", "of='pretraining', keys={'seed': 7}", r"column 'c': keys: .*seed"),
    ("'c': 1.0", "'c': float('nan')", r"row 'one': published: c: expected a finite number, got nan"),
    ("of='pretraining'", "of='pretraining', plus=1e400", r"column 'c': plus: expected a finite number, got inf"),
    ("'two': made", '2: made', r"'rows'"),
  ],
)
def test_a_mistake_is_named(tmp_path, old, new, message):
  assert old in GOOD
  with pytest.raises(ConfigError, match=message):
    read(tmp_path, GOOD.replace(old, new, 1))


def test_a_config_that_does_not_resolve_names_row_and_key(tmp_path):
  table = read(tmp_path, GOOD.replace("'two': made", "'two': dict(made, keys={'optim.rat': 1.0})"))
  with pytest.raises(ConfigError, match=r"row 'two', pre-training: .*unknown key optim\.rat: did you mean optim\.rate"):
    plan(table, tmp_path)


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(ConfigError, match=r'none\.py.*albert_2\.py, .*in total'):
    file.read(str(tmp_path / 'none.py'), 'small')


def test_a_scale_that_is_not_there():
  with pytest.raises(ConfigError, match=r"scale.*'large'.*tiny, small, paper"):
    file.read(FILES[0], 'large')


CHOSEN = """
def get_table(scale):
  made = dict(config='experiments/quickstart/pretrain.py:quick')
  rows = dict(dev=dict(data=dict(split='DEV')), test=dict(data=dict(split='validation')))
  score = dict(
    configs=dict(bert='experiments/bert/glue.py:sst2,quick'), metric='test/accuracy', chosen_by=('dev/accuracy', 'max'),
    keys={'eval': rows, 'best': None, 'data.split': 'TRAIN'},
    grid=[{'optim.rate': 1e-4}, {'optim.rate': 2e-4}, {'steps': 3}],
  )
  return dict(
    title='A', paper='B', mark='B', summary='best on dev', tuning_seeds=2, rows=dict(one=made),
    columns={'score': score, 'tokens': dict(of='tokens')},
  )
"""


def chosen(tmp_path, train='train[:90%shuffled]', dev='train[90%shuffled:]'):
  return plan(read(tmp_path, CHOSEN.replace('DEV', dev).replace('TRAIN', train)), tmp_path)


def test_each_seed_is_made_with_each_point_of_a_grid(tmp_path):
  ((runs_of_it,),) = [by_seed for cell, by_seed in chosen(tmp_path).items() if cell.column == 'score']
  made = [(run.settings['seed'], run.settings['optim']['rate'], run.settings['steps']) for run in runs_of_it]
  rate, steps = made[2][1], made[0][2]
  assert made == [(seed, *point) for seed in (0, 1) for point in ((1e-4, steps), (2e-4, steps), (rate, 3))]
  assert len({run.digest for run in runs_of_it}) == 6


@pytest.mark.parametrize(
  ('train', 'dev', 'message'),
  [
    ('train', 'test', r'\btest\b'),
    ('train', 'validation', r'eval\.dev\.data and eval\.test\.data'),
    ('train', 'validation[:50%]', r'eval\.dev\.data and eval\.test\.data'),
    ('train', 'train[90%:]', r'eval\.dev\.data and data\b'),
    ('train[:90%]', 'train[:90%]', r'eval\.dev\.data and data\b'),
    ('train[:90%]', 'train[80%:]', r'eval\.dev\.data and data\b'),
    ('train[:90%]', 'train[5000:]', r'eval\.dev\.data and data\b'),
    ('train[:10]+validation', 'train[-10:]+train[5:6]', r'eval\.dev\.data and data\b'),
  ],
)
def test_rows_that_choose_a_run_are_neither_reported_nor_learned(tmp_path, train, dev, message):
  with pytest.raises(ConfigError, match=f"row 'one', column 'score': chosen_by: .*{message}"):
    chosen(tmp_path, train, dev)


def test_a_split_that_is_none_is_named(tmp_path):
  with pytest.raises(ConfigError, match=r"row 'one', column 'score': .*split 'train\[:90%'"):
    chosen(tmp_path, 'train[:90%', 'train[90%:]')


def test_an_evaluation_that_is_not_there_chooses_nothing(tmp_path):
  text = CHOSEN.replace("'dev/", "'held_out/").replace('DEV', 'train[90%:]').replace('TRAIN', 'train[:90%]')
  with pytest.raises(ConfigError, match=r"'held_out'.*dev, test"):
    plan(read(tmp_path, text), tmp_path)
