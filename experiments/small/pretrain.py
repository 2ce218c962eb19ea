"""A BERT, a GPT or a BART of 5 M parameters, pre-trained on English in about an hour on a laptop.

plm-jax vocab train --source=runs/data/english --name=byte_bpe --size=8000 --out=runs/vocab/small
plm-jax train --config=experiments/small/pretrain.py:bert --workdir=runs/small/bert

`runs/data/english` is a folder with train.txt and validation.txt, blank lines between documents. Ours is 53.6 MB of
classic novels and 3.2 MB of Wikipedia, 14 M tokens of this vocabulary.

Paper: the objectives of Devlin et al. 2018, Radford et al. 2018 and Lewis et al. 2019 on networks of one size.
Hardware: a CPU core; bert 56 minutes at 2,700 tokens/s, gpt 35 and bart 40 at half as many updates;
--config.steps=N shortens it.
Expect, our own figures, perplexity of held-out novels: bert 99.0 of masked tokens (its plateau, the frequencies of
tokens, is at 930), gpt 118.5 (1.757 bits a byte), bart 4.70 of the text that it writes again, on a GPU as on a CPU;
medium 33.6, 54.5 (1.452) and 4.03. Fine-tuned, mean of three seeds, and the same network from scratch: BERT SST-2 76.8
and 73.4, TREC 87.7 and 81.7, parts of speech (EWT) 91.3 and 84.9, names (WNUT-17, F1) 14.7 and .5, STS-B 16.9 and 7.5
(Spearman), SNLI 38.9 and 37.8 (one class alone 32.9), MRPC 70.5 and 68.6 (one class alone 68.4), SQuAD 12.5 and 8.6
(F1); GPT SST-2 74.0 and 74.1, SciTLDR 21.5 and 19.1 (ROUGE-1; the first sentence alone 31.3: 1,992 papers teach it how
summaries begin, not what a paper says), medium 82.7 and 78.4, 27.6 and 23.4; BART SciTLDR 30.6 and 21.4, Multi30k to
English (BLEU) 31.5 and 26.4, SST-2 68.3 and 72.3. CoLA (Matthews 2.4 and 0), RTE (52.5 and 52.2, one class alone 52.7),
HellaSwag (26.3 and 26.1, one class alone 25.7) and COPA (BERT 45.7 and 50.3, GPT 50.0 and 47.3, one class alone 45)
stay at chance; what they would take is not tried. Without an update the GPT names no last word of LAMBADA's 5,153, and
prefers the right end in 62 of COPA's 100 rows (experiments/results/small).
tables/small_bert.py, small_gpt.py and small_bart.py ask what each is worth on tasks.
Arguments: a model (bert, gpt, bart), `medium`, `quick`. Medium is 30 M parameters (BART 34: 512 wide, 8 layers, BART 4
and 4), rows of 384 tokens and three to seven passes over the text in bfloat16, for a GPU. Its BERT left the plateau
within 1,000 updates; from a deviation of .06 at a rate of 1e-3 one of six layers had not after 2,400.
Differs from the paper: 256 wide, 4 layers (BART: 2 and 2), rows of 64, no dropout (less than one pass over the text),
parameters that start from a deviation of .06 (from .02 a network so narrow stays where it knows word frequencies
alone), BERT's positions from sinusoids; BERT chooses 40 % of the tokens and has no second task, as the quick start.
"""

from experiments import common

SIZES = dict(
  num_heads=4, hidden_dim=256, mlp_dim=1024, max_length=512, dropout=0.0, attention_dropout=0.0, init_std=0.06
)
MODELS = {
  'bert': dict(name='bert', variant='tiny', overrides=dict(SIZES, num_layers=4, position_init='sinusoids')),
  'gpt': dict(name='gpt', variant='gpt2', overrides=dict(SIZES, num_layers=4)),
  'bart': dict(name='bart', variant='bart-base', overrides=dict(SIZES, num_layers=2)),
}
OBJECTIVES = {
  'bert': dict(name='mlm', where=dict(name='fixed_count', rate=0.4), edit=dict(name='bert_80_10_10')),
  'gpt': dict(name='causal_lm'),
  'bart': dict(
    name='denoise_seq2seq',
    where=dict(name='poisson_spans', rate=0.3, mean=3.0),
    edit=dict(name='collapse_to_mask', max_insert=1),
    target='text',
    start='eos',
    append_eos=False,  # rows are <s> text </s>
  ),
}
# the sizes of `medium`, whose rows are as long as the longest of the tasks behind it
MEDIUM = dict(num_heads=8, hidden_dim=512, mlp_dim=2048, init_std=0.04)
DEPTH = {'bert': 8, 'gpt': 8, 'bart': 4}
MEDIUM_STEPS = {'bert': 8_000, 'gpt': 3_000, 'bart': 3_000}
# a GPT and a BART predict every token, a BERT two of five: half the updates predict no fewer
STEPS = {'bert': 2_000, 'gpt': 1_000, 'bart': 1_000}


def get_config(arg=''):
  """Takes a model, `medium` and `quick`."""
  model, medium = common.chosen(arg, tuple(MODELS)), 'medium' in common.words(arg)
  c = common.run(arg, choices=(*MODELS, 'medium'), steps=(MEDIUM_STEPS if medium else STEPS)[model])
  c.vocab = dict(name='byte_bpe', path=common.vocab('small'))
  c.model = MODELS[model]
  c.objective = OBJECTIVES[model]
  c.data = dict(name='stream', path='runs/data/english', length=64, batch_size=64)
  c.optim = dict(name='adamw', rate=1e-3, schedule='linear', warmup=0.05, decay=common.NO_DECAY_ON_NORMS, clip=1.0)
  c.execution = dict(layers='loop')  # four layers: unrolled, a CPU runs them faster
  c.accumulate = 8  # eight rows at a time stay in the cache of a CPU: 1.3 times as many tokens a second as all 64
  c.eval = {'validation': dict(data=dict(split='validation'))}
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 50, 500, 250
  if medium:
    c.model.overrides.update(MEDIUM, num_layers=DEPTH[model])
    c.data.length, c.data.batch_size, c.optim.rate = 384, 32, 5e-4
    c.execution, c.accumulate = dict(dtype='bfloat16', random='rbg'), 1
  return common.quick(c, arg)
