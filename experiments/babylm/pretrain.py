"""The baselines of the BabyLM challenge of 2023: Warstadt et al. 2023, "Findings of the BabyLM Challenge", §5; settings
of babylm/baseline-pretraining.

mkdir -p data/babylm_10m
cat babylm_10M/*.train > data/babylm_10m/train.txt; cat babylm_dev/*.dev > data/babylm_10m/validation.txt
plm-jax vocab train --source=data/babylm_10m --name=byte_bpe --size=50265 --specials=roberta --out=runs/vocab/babylm_10m
plm-jax train --config=experiments/babylm/pretrain.py:opt --workdir=runs/babylm/opt_10m
python launch/blimp_filtered.py ../shared/data/blimp data/blimp_filtered data/babylm_10m/train.txt
plm-jax evaluate --config=experiments/blimp/pairs.py --weights=runs/babylm/opt_10m \
    --config.data.path=data/blimp_filtered --workdir=runs/babylm/opt_10m_blimp

babylm_10M and babylm_dev are folders of the challenge. With `100m` the text is data/babylm_100m, and its vocabulary:
plm-jax vocab train --source=data/babylm_100m --name=byte_bpe --size=50265 --specials=roberta \
    --out=runs/vocab/babylm_100m
`--config.data.path=FOLDER` names other text.

Hardware: one GPU; some hours for ten million words.
Expect (BLiMP filtered by vocabulary, mean of twelve phenomena; 10 M and 100 M words): opt 62.6, 75.3; roberta 69.5,
75.1; t5 58.8, 56.0. tables/babylm_2023.py has all numbers.

Arguments: a model (opt, roberta, t5), a track (10m, 100m), `quick`.
Differs from the paper: a vocabulary trained on the text, where the challenge took the published ones
(--config.vocab.path=FOLDER takes one, --config.vocab.name its kind); pieces of roberta's text are joined by
<s> and </s> between lines as in RoBERTa's full sentences, where the challenge has a pair at each line; the rate of opt
and roberta stays at its peak, and that of t5 falls to 0, as in the challenge.
"""

from experiments import common

MODELS = {
  'opt': dict(name='gpt', variant='opt-125m'),
  'roberta': dict(name='bert', variant='roberta-base'),
  't5': dict(name='t5', variant='t5-base'),
}
OBJECTIVES = {
  'opt': dict(name='causal_lm', packing='stream'),
  'roberta': dict(name='mlm', where=dict(name='fixed_count', rate=0.15), edit=dict(name='bert_80_10_10')),
  't5': dict(
    name='denoise_seq2seq', packing='stream', where=dict(name='exact_spans', rate=0.15, mean=3.0)
  ),
}  # fmt: skip
DATA = {
  'opt': dict(layout='stream', end='', length=128),
  'roberta': dict(layout='full', length=128),
  't5': dict(layout='stream', length=141),  # whose inputs have 128 tokens
}
CONSTANT = dict(name='adamw', rate=1e-4, schedule='constant', warmup=5_000, decay=0.1, clip=1.0)
OPTIM = {
  'opt': CONSTANT,
  'roberta': CONSTANT,
  't5': dict(name='adafactor', rate=0.005, schedule='linear', warmup=2_000, decay=0.001),
}
TRACKS = ('10m', '100m')


def get_config(arg=''):
  """Takes a model, a track and `quick`."""
  model, track = common.chosen(arg, tuple(MODELS)), common.chosen(arg, TRACKS)
  c = common.run(arg, choices=(*MODELS, *TRACKS), epochs=20)
  c.vocab = dict(name='byte_bpe', path=common.vocab(f'babylm_{track}'), extra=common.SENTINELS if model == 't5' else ())
  c.model, c.objective = MODELS[model], OBJECTIVES[model]
  c.data = dict(name='stream', path=f'data/babylm_{track}', documents='line', batch_size=128, **DATA[model])
  c.optim = OPTIM[model]
  c.sharding = dict(mesh=dict(data=-1))
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
