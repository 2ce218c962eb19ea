"""MiniLM made smaller: zeros, 8 bits, and three of its six layers with a teacher (Sanh et al. 2019 and others).

bash launch/released.sh
plm-jax tables experiments/tables/minilm_compressed.py:tag --scale=small --workdir=runs/tables --data=../shared/data

`classify` reads TREC and SST-2, `tag` the parts of speech of EWT, whose tagger has no teacher here. Each seed has its
own fine-tuned network, from which the rows start. Rows with "again" or "taught" make as many updates after it and are
compared with the network fine-tuned again; the others make none. Zeros are the smallest weights of each matrix of a
dense layer, or of all of them, set at once; 8 bits are those of weights and tables, not of activations.

Claims: a teacher and a start from every second layer help (Sanh et al. 2019, Table 4, of pre-training); zeros cost less
with training after them (Han et al. 2015); 50 % and more cost accuracy (Gordon et al. 2020, who prune before
fine-tuning). That 30 to 40 % cost nothing (Gordon et al.) and 8 bits less than 1 % (Zafrir et al. 2019) are no
differences, so these rows are only measured.
24 of 102 runs were made, all on TREC.
"""

from experiments.tables.shared import minilm

BEFORE = '{before}'  # folder of the fine-tuned network
SHARES = (40, 50, 70)
ONE_STEP = {'steps': 1, 'log_every': 1, 'eval_every': 1, 'save_every': 1, 'epochs': None}
WHOLE, AMONG_ALL = 'fine-tuned again', '70 % zeros among all'
SLIM, FRESH = 'three layers', 'three new layers'
# networks: variant and sizes, vocabulary, and the layers that a student starts from
SIZES = dict(hidden_dim=384, num_heads=12, mlp_dim=1536, activation='gelu_erf', norm_epsilon=1e-12)
NETWORKS = {
  True: ('tiny', dict(position_init='sinusoids'), 'byte_bpe', 2, (0,)),
  False: ('bert-base', SIZES, 'wordpiece', 6, (0, 2, 4)),
}


def get_table(scale, arg='classify'):
  """Takes a scale, and `classify` or `tag`."""
  word = minilm.word(arg, minilm.STUDIED)
  columns = minilm.columns(scale, *minilm.STUDIED[word], found=True)
  for column in columns.values():
    column |= dict(between=column['configs'], between_keys=column.get('keys', {}))
  rows = {'fine-tuned': minilm.trunk(scale, direct=True), WHOLE: minilm.trunk(scale)}
  inner, still = minilm.INNER[word], {'optim.rate': 0.0} | ({} if scale == 'tiny' else ONE_STEP)
  eight = {'adapter': dict(name='quantise', inner=inner)}
  rows['8 bits'] = minilm.trunk(scale, tuning=eight | still)
  rows['8 bits, again'] = minilm.trunk(scale, tuning=eight)
  kinds = {f'{share} % zeros': dict(sparsity=share / 100, scope='matrix') for share in SHARES}
  for name, kind in (kinds | {AMONG_ALL: dict(sparsity=0.7)}).items():
    zeros = {'adapter': dict(name='prune', inner=inner, **kind)}
    rows[name] = minilm.trunk(scale, tuning=zeros | still)
    rows[f'{name}, again'] = minilm.trunk(scale, tuning=zeros)
  rows |= _students(scale, inner, still, taught=word == 'classify')
  return dict(
    title='MiniLM made smaller',
    paper='Sanh et al. 2019, Table 4; Han et al. 2015; Gordon et al. 2020; Zafrir et al. 2019; of other networks',
    mark='none',
    rows=rows,
    columns=columns,
    claims=[claim for column in columns for claim in _claims(column, rows)],
    pretraining_seeds=1 if scale == 'tiny' else 3,  # each with its own fine-tuned network
    tuning_seeds=1,
    plateau='validation/perplexity' if scale == 'tiny' else 'test/accuracy',  # of the runs that others start from
  )


def _students(scale, inner, still, *, taught):
  """Return the rows of networks of half the layers."""
  variant, sizes, kind, depth, layers = NETWORKS[scale == 'tiny']
  model, small = (
    dict(name='bert', variant=variant, overrides=sizes | dict(num_layers=n)) for n in (depth, len(layers))
  )
  copied = (dict(source=BEFORE, layers=layers), dict(source=BEFORE, from_='head', to='head'))
  sized = {'model': small, 'vocab': dict(name=kind, path=f'{BEFORE}/vocab')}
  teacher = dict(source=BEFORE, from_='', to='distil')
  adapter = {'adapter': dict(name='distil', teacher=model, inner=inner)}
  tunings = {SLIM: sized | {'init_from': copied} | still, f'{SLIM}, again': sized | {'init_from': copied}}
  if taught:
    tunings[f'{SLIM}, taught'] = sized | {'init_from': (teacher, *copied)} | adapter
    tunings[f'{FRESH}, taught'] = sized | {'init_from': (teacher,)} | adapter
  rows = {name: minilm.trunk(scale, tuning=tuning) for name, tuning in tunings.items()}
  rows[FRESH] = minilm.trunk(scale, tuning={'model': small}, start='scratch', direct=True)
  return rows


def _claims(column, rows):
  """Return the claims of a column; those with `asked` are not of a paper."""
  pairs = [(f'{share} % zeros, again', f'{share} % zeros', share < 50) for share in SHARES]
  pairs += [(WHOLE, f'{share} % zeros, again', share < 50) for share in SHARES]
  pairs += [('70 % zeros', AMONG_ALL, True), ('fine-tuned', '8 bits', True), (WHOLE, '8 bits, again', True)]
  pairs += [(f'{SLIM}, taught', f'{SLIM}, again', False), (f'{FRESH}, taught', FRESH, True)]
  pairs += [(f'{SLIM}, again', FRESH, False), (WHOLE, f'{SLIM}, again', True)]
  return [
    dict(column=column, better=better, than=than, asked=asked)
    for better, than, asked in pairs
    if better in rows and than in rows
  ]
