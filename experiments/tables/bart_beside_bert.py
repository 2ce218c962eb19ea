"""A BART and a BERT of a million parameters each, on understanding and on writing (Lewis et al. 2019, §5).

plm-jax tables experiments/tables/bart_beside_bert.py --scale=small --workdir=runs/tables --data=../shared/data

Both read the same tokens of the same text; the heads of shared/scales.py and shared/ladder.py have the commands that
make text, vocabulary and SST-2. Paper trains the configs unchanged.
A BERT writes like BERT2RND of Rothe et al. 2020: a new decoder reads its states, here through one new encoder layer,
and starts from its word vectors.
"""

from experiments.tables.shared import claims, ladder, scales

UNDERSTANDS, WRITES = ('SST-2', 'TREC'), 'SciTLDR'
BERT, BART, WRITER, SCRATCH = 'BERT', 'BART', 'BERT and a new decoder', 'BART from scratch'
# the BERT, and its word vectors for the new decoder
BEGINS = (
  dict(source='{before}', from_='trunk', to='trunk/source'),
  dict(source='{before}', from_='trunk/token_embed', to='trunk/token_embed'),
)
STEPS = 250
NO_END = 'the vocabulary of BERT has no token that ends a text'
NOTE = (
  'The BERT has two layers and masks 40 % of the tokens. The BART has one layer in each stack and infills 30 %. On '
  'SciTLDR a text is the first 128 tokens of an abstract, and a summary 32 tokens at most.'
)


def _writes(scale):
  """Return the column of summaries in a sentence, small: of the first 128 tokens of an abstract."""
  configs = {
    'bart': 'experiments/bart/summarise.py:scitldr,base',
    'writer': 'experiments/bart/translate.py:second,base',
  }
  if scale == 'tiny':
    configs = {family: f'{config},quick' for family, config in configs.items()}
    return dict(metric='validation/loss', better='min', configs=configs)
  data = dict(name='text_to_text', path='runs/data/scitldr_abstract', layout='roberta')
  data |= dict(form=dict(name='template', inputs='{source}', target='{target}'))
  keys = dict(data=data, eval=dict(
    validation=dict(data=dict(split='validation'), scores=()),
    test=dict(data=dict(split='test'), scores=('rouge',), every=STEPS if scale == 'small' else 1_000),
  ))  # fmt: skip
  if scale == 'paper':
    data |= dict(length=512, target_length=64, batch_size=32)
    return dict(metric='test/rouge1', configs=configs, keys=keys, folder='scitldr_abstract')
  data |= dict(length=128, target_length=32, batch_size=16)
  keys |= scales.ON_A_LAPTOP | scales.every(STEPS) | {'adapter.decoding': dict(method='beam', no_repeat=3)}
  keys['model.overrides.attention_dropout'] = 0.0  # as in pre-training
  keys['optim'] = dict(name='adamw', rate=1e-3, schedule='linear', warmup=0.1, decay=0.01, clip=1.0)
  first = {'first sentence': 31.3}
  return dict(metric='test/rouge1', configs=configs, keys=keys, folder='scitldr_abstract', trivial=first)


def get_table(scale):
  """Takes a scale."""
  sizes = scales.SIZES | dict.fromkeys(('num_layers', 'num_decoder_layers'), 1)  # of the BART
  bert = scales.pretraining(scale, 'bert/base.py', 'mlm', **scales.masks(scale, lifted=True))
  bart = scales.pretraining(scale, 'bart/base.py', small=sizes)
  made = ladder.columns('1m', *UNDERSTANDS) if scale == 'small' else ladder.columns(scale, 'SST-2')
  columns = {name: made[name] for name in UNDERSTANDS if name in made} | {WRITES: _writes(scale)}
  writer = {'init_from': BEGINS}
  if scale == 'small':
    vocab = scales.PRETRAINING['vocab']
    source = dict(name='bert', variant='bert-base', overrides=scales.SIZES)
    writer |= {'vocab': vocab, 'second_vocab': vocab, 'adapter.source': source, 'model.overrides': sizes}
  understood = dict.fromkeys((name for name in columns if name != WRITES), 'it is the BERT of the row above')
  rows = {
    BERT: dict(bert, family='bert', without={WRITES: 'an encoder alone writes no text'}),
    WRITER: dict(bert, family='writer', tuning=writer, without=understood, empty=NO_END if scale == 'paper' else ''),
    BART: dict(bart, family='bart'),
    SCRATCH: dict(bart, family='bart', start='scratch', without=dict.fromkeys(understood, 'it is not made')),
  }
  asked = [dict(column=name, better=BERT, than=BART, asked=True) for name in understood]
  return dict(
    title='A BART beside a BERT of one size',
    paper='No table of a paper. The text of Lewis et al. 2019 claims that BART is level with RoBERTa on '
    'understanding and better at writing',
    mark='none',
    columns=columns,
    rows=rows,
    claims=[
      *asked,
      *claims.claims([WRITES], (BART, SCRATCH), *([] if scale == 'paper' else [(BART, WRITER), (WRITER, SCRATCH)])),
    ],
    tuning_seeds=1,
    pretraining_seeds=2 if scale == 'small' else 1,
    summary='best point on dev' if scale == 'small' else 'mean',
    note='' if scale == 'paper' else NOTE,
  )
