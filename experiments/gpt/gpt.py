"""GPT: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", §3.1 and §4.1.

plm-jax vocab train --source=tfds:pg19 --text=book_text --name=byte_bpe \
    --size=40478 --out=runs/vocab/gpt
plm-jax train --config=experiments/gpt/gpt.py --workdir=runs/gpt/gpt

Hardware: the authors took a month on 8 GPUs. An epoch has about 2.5 billion tokens (2 billion words). Slice: v5e:4x4,
2.8 days by cycles.
Expect: a perplexity of 18.4 a token on BooksCorpus (§4.1); fine-tuned, see classify.py. On other books the number is
another one.

Arguments: `quick`.
Differs from the paper: books out of copyright (PG-19) for BooksCorpus, byte-level BPE of the same size for BPE over
characters; --config.data.path=FOLDER takes another corpus. The 100 epochs are the paper's, for 5 GB of text; PG-19 has
about twice that.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=100)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt'))
  c.model = dict(name='gpt', variant='gpt')
  c.objective = dict(name='causal_lm', packing='stream')
  c.data = dict(
    name='stream', path=common.corpus('books'), text='book_text', layout='stream', length=512, batch_size=64
  )
  c.optim = dict(
    name='adamw',
    rate=2.5e-4,
    schedule='cosine',
    warmup=2000,
    decay=common.NO_DECAY_ON_NORMS,  # the paper's modified L2, .01
    b1=0.9,
    b2=0.999,
    eps=1e-8,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16', layers='auto')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
