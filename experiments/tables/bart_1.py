"""BART, Table 1: eleven ways to pre-train (Lewis et al. 2019, §4).

plm-jax tables experiments/tables/bart_1.py --scale=small --workdir=runs/tables --data=../shared/data
plm-jax vocab train --source=../shared/data/multi30k_en_de --text=de --name=byte_bpe --specials=roberta \\
    --size=6000 --out=runs/vocab/de

Small: three pre-trainings a row; two stacks of one layer, or one of two. Since the paper's texts
are not among the small data, networks write summaries of SciTLDR, from 128 tokens of an abstract, and translate
Multi30k from German by a new encoder.
"""

from experiments.tables.shared import claims, scales, tasks

ROWS = {  # word of the config: name, family, SQuAD F1, MNLI, and perplexities of ELI5, XSum, ConvAI2, CNN/DM
  'masked_lm': ('masked LM', 'bert', (90.0, 83.5, 24.77, 7.87, 12.59, 7.06)),
  'masked_seq2seq': ('masked seq2seq', 'bart', (87.0, 82.1, 23.40, 6.80, 11.43, 6.19)),
  'lm': ('LM', 'gpt', (76.7, 80.1, 21.40, 7.00, 11.51, 6.56)),
  'permuted_lm': ('permuted LM', 'bert', (89.1, 83.7, 24.03, 7.69, 12.23, 6.96)),
  'multitask': ('multitask masked LM', 'bert', (89.2, 82.4, 23.73, 7.50, 12.39, 6.74)),
  'masking': ('token masking', 'bart', (90.4, 84.1, 25.05, 7.08, 11.73, 6.10)),
  'deletion': ('token deletion', 'bart', (90.4, 84.1, 24.61, 6.90, 11.46, 5.87)),
  'infilling': ('text infilling', 'bart', (90.8, 84.0, 24.26, 6.61, 11.05, 5.83)),
  'rotation': ('document rotation', 'bart', (77.2, 75.3, 53.69, 17.14, 19.87, 10.59)),
  'shuffling': ('sentence shuffling', 'bart', (85.4, 81.5, 41.87, 10.93, 16.67, 7.89)),
  'infill_shuffle': ('infilling + shuffling', 'bart', (90.8, 83.8, 24.17, 6.62, 11.12, 5.41)),
}
COLUMNS = ('SQuAD F1', 'MNLI', 'SST-2', 'ELI5', 'XSum', 'ConvAI2', 'CNN/DM')
PUBLISHED = tuple(name for name in COLUMNS if name != 'SST-2')
WRITTEN = {'XSum': 'xsum', 'CNN/DM': 'cnn_dailymail'}  # words of the configs that summarise
SMALL = {  # what is written instead: folder, configs by family, changes of them
  'SciTLDR': (
    'scitldr_abstract',
    {'bart': ('bart/summarise.py', 'scitldr', 'base'), 'gpt': ('gpt/summarise.py', 'scitldr')},
    dict(data__length=128, data__target_length=32, data__batch_size=16, optim__rate=1e-3),
  ),
  'Multi30k': (
    'multi30k_en_de',
    {'bart': ('bart/translate.py', 'multi30k', 'base')},
    dict(
      data__length=40,
      data__target_length=40,
      data__batch_size=32,
      adapter__stage='second',
      adapter__source__overrides=dict(scales.SIZES, num_layers=1),
      optim__rate=1e-3,
      optim__clip=1.0,
    ),
  ),
}


def written(scale):
  """Return the columns of `SMALL`, by perplexity; none at the paper's scale."""
  columns = {}
  for name, (folder, configs, keys) in SMALL.items() if scale != 'paper' else ():
    targets = {family: scales.target(scale, *config, small='') for family, config in configs.items()}
    columns[name] = dict(metric='validation/perplexity', better='min', configs=targets)
    if scale == 'small':
      asked = {'eval': dict(validation=dict(data=dict(split='validation'), scores=()))}  # no text is written
      columns[name] |= dict(keys=scales.TUNING | scales.every(400) | scales.dotted(keys) | asked, folder=folder)
  return columns


def get_table(scale):
  """Takes a scale."""
  columns, rows = tasks.columns(scale, *(name for name in COLUMNS if name not in WRITTEN)), {}
  for name, word in WRITTEN.items():
    configs = {'bart': f'experiments/bart/summarise.py:{word},base', 'gpt': f'experiments/gpt/summarise.py:{word}'}
    columns[name] = dict(metric='validation/perplexity', better='min', configs=configs)
    columns[name] |= {} if scale == 'paper' else dict(empty='it is not among the small data')
  ours = written(scale)
  without = dict.fromkeys((*WRITTEN, *ours), 'a trunk without a decoder writes nothing')
  for word, (name, family, published) in ROWS.items():
    small = dict(scales.SIZES, num_layers=1) if family == 'bart' else scales.SIZES
    rows[name] = scales.pretraining(scale, 'bart/comparison.py', word, small=small)
    rows[name] |= dict(family=family, published=claims.by_column(PUBLISHED, published))
    rows[name] |= dict(without=without) if family == 'bert' else {}
    if family == 'gpt' and ours:
      rows[name]['without'] = {'Multi30k': 'its trunk reads no states of an encoder'}
    if family == 'gpt' and scale == 'paper':  # text and summary are one row of its 512 positions
      rows[name]['limits'] = {key: {'data.length': 512} for key in WRITTEN}
  rows['BERT base'] = dict(empty="the numbers of BERT's authors", published={'SQuAD F1': 88.5, 'MNLI': 84.3})
  columns = {name: columns[name] for name in COLUMNS} | ours
  return dict(
    title='BART, Table 1: ways to pre-train',
    paper='Lewis et al. 2019, §4; base, a million steps; perplexities of written text, less is better',
    mark='C',
    columns=columns,
    rows=rows,
    claims=[
      *claims.claimed(
        columns,
        rows,
        ('text infilling', 'document rotation'),
        ('text infilling', 'sentence shuffling'),
        ('masked LM', 'LM'),
        ('token deletion', 'document rotation'),
        asked=('SST-2',),
      ),
      *claims.claimed(  # of texts that are written
        columns,
        rows,
        ('token deletion', 'token masking'),
        ('text infilling', 'document rotation', ()),
        asked=tuple(ours),
      ),
    ],
    pretraining_seeds=3 if scale == 'small' else 1,
    tuning_seeds=dict(tiny=1, small=1, paper=1)[scale],
    reference='masked LM',
  )
