"""Cross-view training of taggers, Clark et al. 2018, §3 and §4: few sentences with labels, many without.

plm-jax vocab train --source=../shared/data/universal_dependencies_en_ewt --text=tokens --name=words \
    --boundaries=spaces --min_frequency=1 --size=30000 --out=runs/vocab/ewt_words
plm-jax train --config=experiments/cvt/tagging.py:ewt,small --workdir=runs/cvt/ewt
plm-jax train --config=experiments/cvt/tagging.py:ewt,small,supervised --workdir=runs/cvt/supervised
plm-jax train --config=experiments/cvt/tagging.py:both,small --workdir=runs/cvt/both

`both` trains two tasks over one encoder. The size `full` is the paper's: all labels, 1B Word, GloVe's 300 numbers.

Hardware: `small` took about five minutes on a CPU that other programs shared; the paper does not say.
Expect (EWT validation, accuracy at the best step, `small`, 125 sentences with labels; `supervised` takes as many steps,
all of them on these), --config.seed=0, 1 and 2 (our own figures):
  cross-view training  82.1  83.8  84.2  mean 83.4
  supervised           80.7  80.6  81.9  mean 81.1

Arguments: a set (ewt, wnut17, both), a size (full, small), `supervised` for the tagger alone, `quick`.
Differs from the paper: other sets of sentences; words keep their capitals and digits, and known words are read by the
spelling of the vocabulary; zeros are no gradient to momentum, where the released code leaves what a step does not train
untouched; kernels start from normals; `small` is an eighth as wide, with shorter warmup and average, and reads 1 % of
the sentences with their labels and the others without.
"""

from experiments import common

SETS = ('ewt', 'wnut17', 'both')
PATHS = dict(ewt='../shared/data/universal_dependencies_en_ewt', wnut17='../shared/data/wnut_17')
LABELLED = '1%shuffled'  # of the sentences, in `small`
QUICK = dict(name='labelled', path='pydocs/parameters', kind='words', fields=('tokens',), label='tags', layout='plain')
QUICK_TAGS = ('O', 'B-name', 'I-name', 'B-type', 'I-type')


def get_config(arg=''):
  """Takes a set, a size, `supervised` and `quick`."""
  name, size = common.chosen(arg, SETS), common.chosen(arg, tuple(common.CVT))
  vectors, overrides, width, std, steps, length = common.CVT[size]
  c = common.run(arg, choices=(*SETS, *common.CVT, 'supervised'), steps=steps)
  c.vocab = dict(name='words', path=common.vocab('ewt_words'))
  c.model = dict(name='cvt', variant='cvt', overrides=overrides)
  c.init_from = (dict(source=vectors, from_='', to='trunk/token_embed'),)
  c.optim = dict(name='momentum', schedule='inverse_time', rate=0.5, clip=1.0, **common.CVT_OPTIM[size])

  def rows(task, split, length=length):
    found = common.tagging(task, layout='plain', split=split)
    return dict(found, path=PATHS[task] if size == 'small' else found['path'], length=length, buckets=())

  tasks = ('ewt', 'wnut17') if name == 'both' else (name,)
  tags = {task: common.TAGGING[task][2] for task in tasks}
  parts = {task: rows(task, f'train[:{LABELLED}]' if size == 'small' else 'train') for task in tasks}
  text = dict(name='stream', layout='rows', begin='<s>', end='</s>', path='tfds:lm1b', documents='line', length=length)
  if size == 'small':
    text = rows(tasks[0], f'train[{LABELLED}:]')
  held_out = {task: rows(task, 'validation', 80) for task in tasks}
  if 'quick' in common.words(arg):
    tags, parts, text = dict(names=QUICK_TAGS), dict(names=QUICK), QUICK
    held_out = parts
  first = next(iter(parts))
  head = dict(hidden=width, layers=(-2, -1), label_smoothing=0.1, init_std=std)
  if common.either(arg, ('supervised', 'both')) == 'supervised':  # a tagger alone has one task
    c.adapter = dict(name='tag', tags=tags[first], activation='relu', dropout=0.0, **head)
    c.data = dict(parts[first], length=length, batch_size=64 if size == 'full' else 32)
    c.eval = dict(validation=dict(data=dict(split='validation', length=80)))
    c.best = ('validation/accuracy', 'max')
  else:
    c.objective = dict(name='multiview', tags=tags, **head)
    c.data = dict(name='mixture', per='step', alternate='text', temperature=2.0, parts=dict(parts, text=text))
    c.data.update(length=length, batch_size=64 if size == 'full' else 32)
    held_out['text'] = rows(tasks[0], 'validation[:100]', 80) if 'names' not in tags else QUICK
    c.eval = dict(validation=dict(data=dict(parts=held_out, length=80)))
    c.best = (f'validation/{first}/accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 250, 250
  return common.quick(c, arg)
