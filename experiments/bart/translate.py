"""BART on translation into the language it was pre-trained on: Lewis et al. 2019, §3.4 and §5.4, Table 6.

plm-jax vocab train --source=parallel:data/wmt16_ro_en --text=ro --name=byte_bpe --specials=roberta \
    --size=32000 --out=runs/vocab/ro
plm-jax train --config=experiments/bart/translate.py --workdir=runs/bart/ro_en
plm-jax train --config=experiments/bart/translate.py:second --workdir=runs/bart/ro_en-second
plm-jax train --config=experiments/bart/translate.py:multi30k,base --workdir=runs/bart/multi30k \
    --config.data.path=../shared/data/multi30k_en_de
plm-jax evaluate --workdir=runs/bart/ro_en-second --evaluation=test --predictions=translations.jsonl
plm-jax vocab train --source=../shared/data/multi30k_en_de --text=en --name=byte_bpe --specials=roberta \
    --size=2000 --out=runs/vocab/multi30k_en_bytes
plm-jax train --config=experiments/bart/translate.py:multi30k,second,small --workdir=runs/bart/small \
    --config.data.path=../shared/data/multi30k_en_de
plm-jax generate --workdir=runs/bart/small --prompt="Ein Mann schläft." --method=beam

An encoder of 6 layers with a vocabulary of its own reads Romanian in place of BART's embeddings. The first stage trains
it, BART's positions and the projections of BART's first self-attention; the second, a run of its own that begins with
the first, all parameters. The data are files train, back, newsdev2016 and newstest2016, each .ro and .en: WMT16's pairs
and the back-translations of Sennrich et al. 2016. --config.data.path=tfds:wmt16_translate/ro-en takes WMT's alone, with
--config.data.split=train --config.eval.validation.data.split=validation --config.eval.test.data.split=test.

Hardware: not published; one accelerator with 40 GB for large. `small` is for a laptop, 80 minutes of a CPU core: a BART
of two layers that nothing pre-trained, which learns in the second stage; cove/translate.py has its German vocabulary.
Expect (test, BLEU): ro_en 36.29 after the first stage, 37.96 after the second; a Transformer without BART 36.80.
Multi30k, German to English, is in no paper. `small` was not run to its end: trained for 600 of its 6,000 steps (1.3
passes) it has not learnt to read, and writes one sentence for all texts: 3.6; German copied 0.5.

Arguments: a set (ro_en, multi30k), a stage (first, second), a trunk (large, base, small), `quick`.
Differs from the paper: its rates, steps and batches are not published, nor is the Romanian vocabulary; batches are a
number of rows; BLEU is sacrebleu's on the texts as they are, where Romanian results are often on tokenised ones.
"""

from experiments import common

# set: (path, split, of validation, of test, what is read and written, its vocabulary, steps of each stage, rows)
SETS = {
  'ro_en': (
    'parallel:data/wmt16_ro_en', 'train+back', 'newsdev2016', 'newstest2016', ('ro', 'en'), 'ro', (100_000, 5_000), 256
  ),
  'multi30k': ('runs/data/multi30k_en_de', 'train', 'validation', 'test', ('de', 'en'), 'de', (5_000, 500), 64),
}  # fmt: skip
STAGES = {'first': dict(rate=5e-4, schedule='inverse_sqrt'), 'second': dict(rate=3e-5, schedule='linear')}
TRUNKS = {'large': ('bart-large', 'roberta-large'), 'base': ('bart-base', 'roberta-base'), 'small': ('tiny', 'tiny')}


def get_config(arg=''):
  """Takes a set, a stage, a trunk and `quick`."""
  name, stage, trunk = (common.chosen(arg, tuple(words)) for words in (SETS, STAGES, TRUNKS))
  path, split, validation, test, (read, written), second, both, rows = SETS[name]
  variant, source = TRUNKS[trunk]
  small = trunk == 'small'
  steps = 6_000 if small else both[stage == 'second']
  c = common.run(arg, choices=(*SETS, *STAGES, *TRUNKS), steps=steps)
  c.vocab = dict(name='byte_bpe', path=common.vocab('multi30k_en_bytes' if small else 'roberta'))
  c.second_vocab = dict(name='byte_bpe', path=common.vocab('multi30k_de' if small else second))
  c.model = dict(name='bart', variant=variant)
  c.adapter = dict(
    name='translate_bart',
    stage=stage,
    source=dict(name='bert', variant=source, overrides=dict(num_layers=2 if small else 6)),
    label_smoothing=0.1,
    decoding=dict(method='beam', beams=5, length_penalty=1.0),
  )
  c.data = dict(
    name='text_to_text',
    path=path,
    split=split,
    form=dict(name='template', inputs=f'{{{read}}}', target=f'{{{written}}}'),
    layout='roberta',
    length=128,
    batch_size=rows,
  )
  c.optim = dict(STAGES[stage], name='adamw', warmup=0.05, decay=0.01, b1=0.9, b2=0.98, eps=1e-6, clip=0.1)
  before = dict(source=f'runs/bart/{trunk}', from_='trunk', to='trunk')
  if stage == 'second':
    before = dict(source=f'runs/bart/{name}', from_='', to='')
  c.init_from = (before,)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  if small:  # it learns from nothing
    c.init_from, c.execution, c.data.length = (), {}, 40
    c.optim.rate, c.optim.warmup, c.optim.clip = 2e-3, 0.1, 1.0
  c.eval = dict(
    validation=dict(data=dict(split=validation), scores=()),
    test=dict(data=dict(split=test), scores=('bleu',), every=steps),  # writes all translations, once
  )
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 50, steps // 10, steps // 10
  return common.quick(c, arg)
