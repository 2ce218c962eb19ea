"""T5 on one task as text to text: Raffel et al. 2020, §2.4, §3.1.2, Table 14 and appendix D.

plm-jax train --config=experiments/t5/tasks.py:mnli --workdir=runs/t5/mnli
plm-jax train --config=experiments/t5/tasks.py:rte --workdir=runs/t5/rte \
    --config.data.path=../shared/data/glue_rte
plm-jax train --config=experiments/t5/tasks.py:wmt_en_de --workdir=runs/t5/wmt_en_de
plm-jax train --config=experiments/t5/tasks.py:multi30k --workdir=runs/t5/multi30k \
    --config.data.path=../shared/data/multi30k_en_de

The inputs and the words of every task are those of `plm_jax/data/rows/forms/t5.py`. An output that is none of a task's
words counts as wrong; WSC is written as the noun that a pronoun stands for, and judged by `plm_jax/scores/wsc.py`.
WNLI is written and judged likewise by a network that is trained on WSC, as in the paper;
--config.eval.validation.data.path=FOLDER is another WNLI. Multi30k (fields en and de) and SciTLDR are not in TensorFlow
Datasets: their paths are folders of .jsonl files.

Hardware: a slice of Cloud TPU pods; 2^18 steps of 128 rows of 512 tokens.
Expect (base, Table 14): GLUE 82.7, of which CoLA 51.1 (MCC), SST-2 95.2, MRPC 87.5, STS-B 88.6 (Spearman), QQP 89.4,
MNLI-m 87.1, QNLI 93.7, RTE 80.1 (accuracy); CNN/DailyMail ROUGE 42.05 / 20.34 / 39.40, BLEU of WMT en-de 30.9, en-fr
41.2, en-ro 28.0; SQuAD EM 85.44; SuperGLUE 76.2.
Scores are those of the benchmarks: MCC (CoLA), correlations (STS-B), F1 (MRPC, QQP), macro F1 (CB), F1a and EM per
question (MultiRC), EM and F1 (ReCoRD, SQuAD); other labels have 'exact_match', which is their accuracy.

Arguments: a task (`TASKS`), `quick`.
Differs from the paper: a byte-level vocabulary, as in pretrain.py; one row a text, where T5 packs several; the length
penalty is length ** .6, where T5's is ((5 + length) / 6) ** .6; one task after pre-training (mixture.py has several at
once); WNLI and WSC without the rows of DPR; the paper has neither XSum nor SciTLDR.
"""

from experiments import common

# What the benchmarks report beside 'match': files of plm_jax/scores/
SCORES = {**common.GLUE_SCORES, 'stsb': ('correlation',), 'cb': ('macro_f1',)}
# The metric that chooses a step: of a task, else of its first score
BEST = {'cola': 'matthews', 'stsb': 'spearman', 'match': 'exact_match', 'multirc': 'f1a', 'record': 'f1', 'squad': 'f1'}
BEST |= {'wsc': 'wsc_accuracy', 'rouge': 'rouge2', 'bleu': 'bleu_intl'}
SEARCH = dict(method='beam', beams=4, length_penalty=0.6, early_stop='never')  # while an open text could be better
SUPER_GLUE = {'boolq': 'boolq', 'cb': 'cb', 'copa': 'copa', 'wic': 'wic', 'super_glue_rte': 'rte'}
SETS = {name: (f'glue/{name}', splits) for name, (_, _, splits) in common.GLUE.items() if name != 'wnli'}
SETS |= {name: (f'super_glue/{config}', ('validation',)) for name, config in SUPER_GLUE.items()}
WMT = {'de': 'wmt14_translate/de-en', 'fr': 'wmt14_translate/fr-en', 'ro': 'wmt16_translate/ro-en'}
BOTH = ('validation', 'test')
# task: (path, splits of the evaluations, scores, tokens of a target, settings of decoding)
TASKS = {
  **{name: (f'tfds:{path}', splits, ('match', *SCORES.get(name, ())), 8, {}) for name, (path, splits) in SETS.items()},
  **{f'wmt_en_{other}': (f'tfds:{path}', BOTH, ('bleu',), 128, SEARCH) for other, path in WMT.items()},
  'multirc': ('tfds:super_glue/multirc', ('validation',), ('multirc',), 8, {}),
  'record': ('tfds:super_glue/record', ('validation',), ('record',), 32, {}),
  'wsc': ('tfds:super_glue/wsc.fixed', ('validation',), ('wsc',), 16, {}),
  'wnli': ('tfds:glue/wnli', ('validation',), ('wsc',), 16, {}),
  'squad': ('tfds:squad', ('validation',), ('squad',), 32, {}),
  'cnn_dailymail': ('tfds:cnn_dailymail', BOTH, ('rouge',), 142, SEARCH),
  'xsum': ('tfds:xsum', BOTH, ('rouge',), 64, SEARCH),
  'scitldr': ('runs/data/scitldr_abstract', BOTH, ('rouge',), 64, SEARCH),
  'multi30k': ('runs/data/multi30k_en_de', BOTH, ('bleu',), 64, SEARCH),
}


def get_config(arg=''):
  """Takes a task and `quick`."""
  task = common.chosen(arg, tuple(TASKS))
  path, splits, scores, room, decoding = TASKS[task]
  c = common.run(arg, choices=tuple(TASKS), steps=2**18)
  c.vocab = dict(name='byte_bpe', path=common.vocab('t5'), extra=common.SENTINELS)
  c.model = dict(name='t5', variant='t5-base')
  c.adapter = dict(name='sequence', decoding=decoding)
  c.data = dict(
    name='text_to_text',
    path=path,
    form=dict(name='t5', task='wmt_en_de' if task == 'multi30k' else task),
    layout='text',
    length=512,
    target_length=room,
    batch_size=128,
    per_target=task == 'record',
  )
  c.optim = dict(name='adafactor', rate=1e-3, schedule='constant')
  c.init_from = (dict(source='runs/t5/pretrain', from_='trunk', to='trunk'),)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  kept = dict(keep_unlabelled='wsc' in scores)  # nouns that are not meant are scored, not trained
  if task == 'wnli':  # trained on WSC
    kept |= dict(path=path, form=c.data['form'])
    c.data = dict(c.data, path=TASKS['wsc'][0], form=dict(name='t5', task='wsc'))
  c.eval = {
    split: dict(one, data=dict(one['data'], **kept), scores=scores) for split, one in common.validation(*splits).items()
  }
  c.best = (f'{splits[0]}/{BEST.get(task, BEST[scores[0]])}', 'max')
  c.log_every, c.eval_every, c.save_every = 100, 5_000, 5_000
  return common.quick(c, arg)
