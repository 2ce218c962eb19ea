"""GLM-10B, in the released code's settings: Du et al. 2021, §3.3 and the script of the 10B model; 9.9B parameters.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=50257 \
    --specials=gpt2 --out=runs/vocab/gpt2
plm-jax train --config=experiments/glm/10b.py --workdir=runs/glm/10b

Three levels of blanks, each with a mask token of its own: short ones in half of the rows, sentences in 30 %, one long
blank of a quarter of the text or more in 20 %. A tenth of the tokens that short blanks read are hidden, and 2 % of rows
are cut into pieces.

Hardware: not published. Slice, cycles unknown: v5p:4x8x8, 2.4 days at 40 % of peak. A lost chip costs at most 16
minutes.
Expect, from the paper: CNN/DailyMail 44.7 / 21.4 / 41.4 ROUGE; LAMBADA 72.35 with the text read both ways, 67.18 one
way; WikiText-103 perplexity 11.33 / 12.22.

Arguments: `quick`.
Differs from the paper: C4's WebText-like part for the Pile and cc-news, and a vocabulary trained on it; the batch is
that of base.py, as the script says 21 rows a GPU and not how many GPUs; pieces of a cut row have no [CLS]. Rate,
moments and decay are those of config_block_10B.json, the schedule that of ds_block_10B.sh.
"""

from experiments import common

# behind GPT-2's 50,257; the table is padded to 50,304 rows
EXTRA = ('<|startofpiece|>', '<|endofpiece|>', '[CLS]', '[MASK]', '[sMASK]', '[gMASK]', '[dBLOCK]')


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=250_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt2'), extra=EXTRA)
  c.model = dict(name='glm', variant='glm-10b', overrides=dict(vocab_multiple=128))
  c.objective = dict(
    name='blank_infilling',
    levels=dict(token=0.5, sentence=0.3, document=0.2),
    ratio=0.25,
    block=0.1,
    short=0.02,
    slots=64,
    mask='[MASK]',
    sentence_mask='[sMASK]',
    document_mask='[gMASK]',
    block_token='[dBLOCK]',
    start=EXTRA[0],
    end=EXTRA[1],
  )
  c.data = dict(name='stream', path=common.corpus('web'), layout='rows', length=512, batch_size=1024)
  c.optim = dict(
    name='adamw',
    rate=1e-4,
    schedule='cosine',
    warmup=0.028,  # .04 of the 175,000 steps of decay
    floor=0.1,
    until=0.7,
    decay=common.no_decay_on_norms(0.1),
    clip=1.0,
    b1=0.9,
    b2=0.95,
    eps=1e-8,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='full')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
