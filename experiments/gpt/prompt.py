"""Zero-, one- and few-shot prompts without an update: Brown et al. 2020, §2.4 and §3, Tables 3.2 and H.1.

plm-jax evaluate --config=experiments/gpt/prompt.py:copa --weights=FOLDER \
    --config.eval.validation.data.path=../shared/data/super_glue_copa
plm-jax evaluate --config=experiments/gpt/prompt.py:copa,few --weights=FOLDER
plm-jax evaluate --config=experiments/gpt/prompt.py:lambada --weights=FOLDER \
    --config.eval.test.data.path=../shared/data/lambada
plm-jax train --config=experiments/gpt/prompt.py:quick --workdir=runs/gpt/prompt

FOLDER is a decoder: one of Hugging Face's gpt2 family, an import, or a run. Nothing is trained; `train` with this
config trains on the right answers. Demonstrations are drawn for each row, by `--config.eval.NAME.data.shots.seed`.
Hardware: any; GPT-2 small reads COPA on a laptop in a minute.
Expect (accuracy in per cent; GPT-3 Small of 125 M, GPT-3 of 175 B; zero-shot / few-shot):
  copa        66.0 / 67.0    91.0 / 92.0      accuracy_sum
  hellaswag   33.7 / 33.5    78.9 / 79.3      accuracy_mean
  lambada     42.7 / 22.0    76.2 / 86.4      answer_accuracy, over the last word

Arguments: a set (copa, hellaswag, lambada), `one` or `few` (32, 20 and 15 demonstrations, as the paper has), `quick`.
Differs from the paper: COPA's options go on with "because" or "so" in lower case; LAMBADA's demonstrations are whole
passages, where the paper's few-shot prompts have a blank; five draws of demonstrations, of which the paper has one.
"""

from experiments import common

# set: (path, split, where demonstrations come from, their number, form, how options are compared)
SETS = {
  'copa': ('tfds:super_glue/copa', 'validation', 'train', 32, dict(name='prompts', task='copa'), 'sum'),
  'hellaswag': ('tfds:hellaswag', 'validation', 'train', 20, dict(name='prompts', task='hellaswag'), 'mean'),
  'lambada': ('tfds:lambada', 'test', 'test', 15, dict(name='prompts', task='lambada'), 'sum'),
}


def get_config(arg=''):
  """Takes a set, `one` or `few`, and `quick`."""
  name, shots = common.chosen(arg, tuple(SETS)), common.chosen(arg, ('zero', 'one', 'few'))
  path, split, pool, many, form, choose = SETS[name]
  c = common.run(arg, choices=(*SETS, 'zero', 'one', 'few'), steps=1_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt2'))
  c.model = dict(name='gpt', variant='gpt2')
  c.adapter = dict(name='prompt', choose=choose)
  c.data = dict(
    name='text_to_text',
    path=path,
    split=pool,
    form=form,
    layout='bare',
    gap=' ',
    length=960,
    target_length=64,
    batch_size=8,
  )
  c.optim = dict(name='adamw', rate=5e-5, schedule='linear', warmup=0.1, decay=0.01, clip=1.0)
  asked = dict(split=split)
  if shots != 'zero':
    asked['shots'] = dict(count=1 if shots == 'one' else many, split=pool, draws=5)
  options = name != 'lambada'
  c.eval = {split: dict(data=asked, scores=() if shots == 'zero' else ('draws',))}
  c.best = (f'{split}/{"accuracy" if options else "answer_accuracy"}', 'max')
  return common.quick(c, arg)
