"""GPT's tasks without training, by rules of thumb: Radford et al. 2018, §5, "Zero-shot Behaviors", and Figure 2.

plm-jax evaluate --config=experiments/gpt/heuristics.py:sst2 --weights=FOLDER \
    --config.eval.validation.data.path=../shared/data/glue_sst2
plm-jax evaluate --config=experiments/gpt/heuristics.py:cola --weights=FOLDER \
    --config.eval.validation.data.path=../shared/data/glue_cola
plm-jax train --config=experiments/gpt/heuristics.py:quick --workdir=runs/gpt/heuristics

FOLDER is a decoder: one of Hugging Face's openai-gpt or gpt2, an import, or a run. Nothing is trained.

  cola      sentences by the mean log-probability of their tokens and a threshold (plm_jax/scores/threshold.py)
  sst2      "positive" or "negative" behind the sentence and "very"
  race      the answer whose tokens have the highest mean log-probability behind the article and the question
  winograd  dpr  winogrande
            the referent in whose place the rest of the sentence has the highest mean log-probability; with `all`, the
            referent and the rest (Trinh & Le 2018: partial and full scoring)

Hardware: any; the smallest models read a set on a laptop.
Expect: the paper draws curves over training and gives no numbers. GPT-2 of 1542 M: winograd 70.7 (Radford et al. 2019,
§3.4). By chance: sst2, winograd, dpr and winogrande 50, race 25, Matthews correlation of cola 0.

Arguments: a set (cola, sst2, race, winograd, dpr, winogrande), `all`, `quick`.
Differs from the paper: cola's mean leaves out the first word; the threshold, of which the paper says nothing, is that
of the other half of the rows; RACE is a folder of .jsonl files with article, question, options and answer (a letter).
"""

from experiments import common

# set: (path, split, how options are compared, scores, what is best)
SETS = {
  'cola': ('tfds:glue/cola', 'validation', 'mean', ('threshold',), 'threshold_matthews'),
  'sst2': ('tfds:glue/sst2', 'validation', 'sum', (), 'accuracy'),
  'race': ('runs/data/race', 'test', 'mean', (), 'accuracy'),
  'winograd': ('tfds:wsc273', 'test', 'mean', (), 'accuracy'),
  'dpr': ('tfds:definite_pronoun_resolution', 'test', 'mean', (), 'accuracy'),
  'winogrande': ('tfds:winogrande', 'validation', 'mean', (), 'accuracy'),
}


def get_config(arg=''):
  """Takes a set, `all` and `quick`."""
  name, all_of_it = common.chosen(arg, tuple(SETS)), 'all' in common.words(arg)
  path, split, choose, scores, best = SETS[name]
  c = common.run(arg, choices=(*SETS, 'all'), steps=1_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt'))
  c.model = dict(name='gpt', variant='gpt')
  c.adapter = dict(name='prompt', choose=choose)
  c.data = dict(
    name='text_to_text',
    path=path,
    split=split,
    form=dict(name='prompts', task=name, compare='all' if all_of_it else 'rest'),
    layout='bare',
    gap=' ',
    length=384,
    target_length=128,
    batch_size=8,
  )
  c.optim = dict(name='adamw', rate=6.25e-5, schedule='linear', warmup=0.002, decay=0.01, clip=1.0)
  c.eval = {split: dict(data=dict(split=split), scores=scores)}
  c.best = (f'{split}/{best}', 'max')
  return common.quick(c, arg)
