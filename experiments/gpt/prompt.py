"""Zero-, one- and few-shot prompts without an update: Brown et al. 2020, §2.4 and §3, Tables 3.2 and H.1.

plm-jax evaluate --config=experiments/gpt/prompt.py:copa --weights=FOLDER \
    --config.eval.validation.data.path=../shared/data/super_glue_copa
plm-jax evaluate --config=experiments/gpt/prompt.py:copa,few --weights=FOLDER
plm-jax evaluate --config=experiments/gpt/prompt.py:lambada --weights=FOLDER \
    --config.eval.test.data.path=../shared/data/lambada
plm-jax evaluate --config=experiments/gpt/prompt.py:multi30k,few --weights=FOLDER \
    --config.data.path=../shared/data/multi30k_en_de --config.eval.test.data.path=../shared/data/multi30k_en_de
plm-jax train --config=experiments/gpt/prompt.py:quick --workdir=runs/gpt/prompt

FOLDER is a decoder: one of Hugging Face's gpt2 family, an import, or a run. Nothing is trained; `train` with this
config trains on the right answers. Demonstrations are drawn for each row, by `--config.eval.NAME.data.shots.seed`.
Hardware: any; GPT-2 small reads COPA on a laptop in a minute.
Expect (accuracy in per cent; GPT-3 Small of 125 M, GPT-3 of 175 B; zero-shot / few-shot):
  copa        66.0 / 67.0    91.0 / 92.0      accuracy_sum
  hellaswag   33.7 / 33.5    78.9 / 79.3      accuracy_mean
  lambada     42.7 / 22.0    76.2 / 86.4      answer_accuracy, over the last word
  wmt_fr_en   - / 20.7       21.2 / 39.2      bleu (Table 3.4; GPT-2 of 1.5 B, after pairs: 11.5)
  wmt_en_fr   - / 14.3       25.2 / 32.6      bleu (GPT-2 of 1.5 B: 5)
  squad       - / -          59.5 / 69.8      f1 of SQuAD 2 (Table 3.7); here are the questions of 1.1
  cbt         GPT-2 of 1.5 B: 93.3 (common nouns), 89.05 (named entities)      accuracy_sum

Arguments: a set (copa, hellaswag, piqa, lambada; cbt of GPT-2; the texts multi30k, wmt_fr_en, wmt_en_fr, squad), `one`
or `few` (32, 20, 50 and 15 demonstrations, as the paper has; 5 of texts), `quick`. PIQA is worded and compared as in
lm-evaluation-harness. runs/data/cbt is the Children's Book Test, as .jsonl with sentences, question, options, answer:
`python launch/cbt.py CBTest/data/cbtest_CN_test_2500ex.txt runs/data/cbt/test.jsonl` converts its published text.
Differs from the paper: COPA's options go on with "because" or "so" in lower case; LAMBADA's demonstrations are whole
passages, where the paper's few-shot prompts have a blank; five draws of demonstrations, of which the paper has one.
"""

from experiments import common

# set: (path, split, where demonstrations come from, their number, form, how options are compared)
SETS = {
  'copa': ('tfds:super_glue/copa', 'validation', 'train', 32, dict(name='prompts', task='copa'), 'sum'),
  'hellaswag': ('tfds:hellaswag', 'validation', 'train', 20, dict(name='prompts', task='hellaswag'), 'mean'),
  'piqa': ('tfds:piqa', 'validation', 'train', 50, dict(name='prompts', task='piqa'), 'characters'),
  'lambada': ('tfds:lambada', 'test', 'test', 15, dict(name='prompts', task='lambada'), 'sum'),
  'cbt': ('runs/data/cbt', 'test', 'validation', 1, dict(name='prompts', task='cbt'), 'sum'),
  'multi30k': ('runs/data/multi30k_en_de', 'test', 'train', 5, dict(name='prompts', task='de_en'), None),
  'wmt_fr_en': ('tfds:wmt14_translate/fr-en', 'test', 'validation', 5, dict(name='prompts', task='fr_en'), None),
  'wmt_en_fr': ('tfds:wmt14_translate/fr-en', 'test', 'validation', 5, dict(name='prompts', task='en_fr'), None),
  'squad': ('tfds:squad', 'validation', 'train', 5, dict(name='prompts', task='question'), None),
}
SCORES = {'squad': ('squad',)}  # of texts; else BLEU


def get_config(arg=''):
  """Takes a set, `one` or `few`, and `quick`."""
  name, shots = common.chosen(arg, tuple(SETS)), common.chosen(arg, ('zero', 'one', 'few'))
  path, split, pool, many, form, choose = SETS[name]
  c = common.run(arg, choices=(*SETS, 'zero', 'one', 'few'), steps=1_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt2'))
  c.model = dict(name='gpt', variant='gpt2')
  c.adapter = dict(name='prompt', choose=choose)
  if choose is None:  # a text is written up to the end of its line
    c.adapter = dict(name='sequence', decoding=dict(method='greedy', max_new=64), first_line=True)
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
  metric = 'answer_accuracy' if name == 'lambada' else 'loss' if choose is None else 'accuracy'
  scores = ('draws',) if shots != 'zero' else ()
  c.eval = {split: dict(data=asked, scores=SCORES.get(name, ('bleu',)) if choose is None else scores)}
  c.best = (f'{split}/{metric}', 'min' if metric == 'loss' else 'max')
  return common.quick(c, arg)
