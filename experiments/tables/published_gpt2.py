"""GPT-2 without training: Radford et al. 2019, Table 3, and numbers that others published of the same weights.

plm-jax tables experiments/tables/published_gpt2.py --scale=published --weights=DIR --workdir=runs/tables --print
plm-jax tables experiments/tables/published_gpt2.py:gpt2 --scale=published --weights=DIR --workdir=runs/tables \
    --data=../shared/data

Words after the colon: rows. Perplexities are by windows of 1,024 tokens that move by 512 (`zero_shot.py:windows`), of
tokens or of words, whose number is that of the set with an end for each line.

The paper reads its sets through de-tokenizers that were not released ("gains of 2.5 to 5 perplexity") and counts a
LAMBADA passage as right by its last token where a filter of stop words leaves it, so its numbers are not compared. The
same weights have numbers that can be met: the page of transformers (raw WikiText-2 by tokens) and the harness of
EleutherAI (LAMBADA by whole words, issues 2159 and 911). Sources of the paper's numbers: the head of gpt/zero_shot.py;
CBT of gpt2 in issue 13761 of transformers; CBT of the other sizes could not be checked.
"""

from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

ZERO_SHOT, LAST_WORD, CLOZE = 'gpt/zero_shot.py:windows', 'gpt/zero_shot.py:lambada', 'gpt/prompt.py:cbt'
CLOSED = 'its de-tokenizer was not released'
TOKENS = 'the paper judges the last token, with a filter of stop words'
RAW = (
  "python -c \"import datasets, pathlib; file = pathlib.Path('{data}/wikitext_2_raw/test.txt'); file.parent.mkdir("
  "parents=True, exist_ok=True); file.write_text('\\n\\n'.join(datasets.load_dataset('wikitext', 'wikitext-2-raw-v1', "
  "split='test')['text']))\""
)
CBT = (
  "python -c \"import datasets; datasets.load_dataset('cam-cst/cbt', '{kind}', split='test')."
  "to_json('{{data}}/cbt/test_{kind}.jsonl')\""
)
PTB = (
  'mkdir -p {data}/ptb && wget -qO- http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz | '
  'tar xzO ./simple-examples/data/ptb.test.txt > {data}/ptb/test.txt'
)
SIDE_BY_SIDE, HALVES = 'WikiText-2 raw, tokens, stride 1024', 'WikiText-2 raw, tokens, stride 512'
PRINTED = (  # columns of the paper
  'WikiText-2', 'PTB', 'WikiText-103', 'LAMBADA, perplexity', 'LAMBADA', 'CBT common nouns', 'CBT named entities'
)  # fmt: skip
PAPER = {
  'gpt2': (29.41, 65.85, 37.50, 35.13, 45.99, 87.65, 83.4),
  'gpt2-medium': (22.76, 47.33, 26.37, 15.60, 55.48, 92.35, 87.1),
  'gpt2-large': (19.93, 40.31, 22.05, 10.87, 60.12, 93.45, 88.0),
  'gpt2-xl': (18.34, 35.76, 17.48, 8.63, 63.24, 93.30, 89.05),
}
OTHERS = {
  'gpt2': {'LAMBADA, whole words, perplexity': 40.06, 'LAMBADA, whole words': 32.56},
  'gpt2-large': {SIDE_BY_SIDE: 19.44, HALVES: 16.44},
  'gpt2-xl': {'LAMBADA, whole words, perplexity': 10.63},
}
FEW = {  # of a network of 135 M parameters on a CPU that others use too
  'WikiText-2, tokens, stride 512': {'eval.test.data.split': 'test[:4000tokens]'},
  'LAMBADA, whole words, perplexity': {'eval.test.data.split': 'test[:100]'},
  'LAMBADA, whole words': {'eval.test.data.split': 'test[:100]'},
}


def text(metric, folder, *, units=None, config=ZERO_SHOT, fetch='', unlike='', **data):
  """Return a column of perplexity on a text."""
  block = dict(split='test', **({} if config == LAST_WORD else dict(documents='exact_file', end='', stride=512)))
  keys = {'eval': {'test': dict(units=units, data=block | data)}, 'best': None, 'data.split': 'test'}
  keys |= {'data.path': f'runs/data/{folder}', 'data.batch_size': 2, 'execution': dict(layers='loop')}
  better = 'max' if metric.endswith('accuracy') else 'min'
  return published.column(
    f'test/{metric}', [config], of='evaluation', better=better, keys=keys, folder=folder, fetch=fetch, unlike=unlike,
    times=100 if better == 'max' else 1,
  )  # fmt: skip


def cloze(kind):
  """Return a column of the Children's Book Test."""
  split = f'test_{kind}'
  keys = {'eval': {'test': dict(data=dict(split=split))}, 'best': None, 'data.split': split}
  return published.column(
    'test/accuracy', [CLOZE], of='evaluation', keys=keys | {'data.path': 'runs/data/cbt'}, folder='cbt',
    fetch=CBT.format(kind=kind), unlike=CLOSED, times=100,
  )  # fmt: skip


def get_table(scale, arg=''):
  """Takes the scale; `arg` rows."""
  columns = {
    'WikiText-2': text('unit_perplexity', 'wikitext_2', units=245_569, unlike=CLOSED),
    'PTB': text('unit_perplexity', 'ptb', units=82_430, fetch=PTB, unlike=CLOSED),
    'LAMBADA, perplexity': text('word_perplexity', 'lambada', config=LAST_WORD, unlike=TOKENS),
    'LAMBADA': text('word_accuracy', 'lambada', config=LAST_WORD, unlike=TOKENS),
    'CBT common nouns': cloze('CN'),
    'CBT named entities': cloze('NE'),
  }
  columns['WikiText-103'] = columns['WikiText-2']  # the same articles
  columns = {name: columns[name] for name in PRINTED}
  rows = {
    name: dict(
      mark='B', marks=dict.fromkeys([*columns][-2:], 'C' if name == 'gpt2' else 'D'),
      published=dict(zip(columns, numbers, strict=True)) | OTHERS.get(name, {}),
    ) for name, numbers in PAPER.items()
  }  # fmt: skip
  for name, others in OTHERS.items():
    rows[name]['marks'] = rows[name]['marks'] | dict.fromkeys(others, 'A' if name == 'gpt2-large' else 'C')
  columns |= {
    'WikiText-2, tokens, stride 512': text('perplexity', 'wikitext_2'),
    HALVES: text('perplexity', 'wikitext_2_raw', fetch=RAW),
    SIDE_BY_SIDE: text('perplexity', 'wikitext_2_raw', fetch=RAW, stride=1024),
    'LAMBADA, whole words, perplexity': text('word_perplexity', 'lambada', config=LAST_WORD),
    'LAMBADA, whole words': text('word_accuracy', 'lambada', config=LAST_WORD),
  }
  of_paper = dict.fromkeys(PRINTED, 'it has no published number')
  rows['SmolLM2-135M-Instruct-4bit'] = dict(limits=FEW, without=of_paper)
  made = published.rows(rows, arg)
  for row in made.values():
    row['family'] = ZERO_SHOT
  for column in columns.values():
    column['configs'] = {ZERO_SHOT: next(iter(column['configs'].values()))}
  return dict(
    title='GPT-2 without training, from published weights',
    paper='Radford et al. 2019, Table 3, beside what others published of the same weights',
    mark='B',
    rows=made,
    columns=columns,
    tuning_seeds=1,
  )
