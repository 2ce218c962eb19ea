"""Similarity of sentences without training: STS-B, SICK-R and STS12 to 16 (Cer et al. 2017; Gao et al. 2021, SimCSE).

plm-jax evaluate --config=experiments/sts/similarity.py --weights=FOLDER
plm-jax evaluate --config=experiments/sts/similarity.py --weights=FOLDER --evaluation=sts13 \
    --config.eval.sts13.data.path=FOLDER_OF_STS13
plm-jax evaluate --config=experiments/sts/similarity.py --workdir=runs/contrastive/simcse --step=all
plm-jax train --config=experiments/sts/similarity.py --workdir=runs/sts/similarity

FOLDER is one of sentence-transformers (its pooling, layers, maximum length and similarity are followed), any other
encoder (the mean of its token states), or a run. A set is a folder with test.jsonl, .csv, .tsv or .parquet: sentence1,
sentence2, label and optionally source. With sources, each is scored too, and their mean. A set that does not exist is
left out. `train` starts from a BERT and makes the sentences of a pair of STS-B neighbours, whatever their label.
Hardware: any; a small encoder takes seconds on a CPU.
Expect (Spearman x 100; SimCSE's Table 5 has STS-B's and SICK-R's test part, MTEB all of SICK-R):
                              sts12  sts13  sts14  sts15  sts16  stsb   sickr_test  average  sickr
  all-MiniLM-L6-v2 (MTEB)     72.37                              82.03                       77.58
  SimCSE, BERT-base           68.40  82.41  74.38  80.91  78.56  76.85  72.23       76.25
  supervised, BERT-base       75.30  84.67  80.19  85.40  80.82  84.25  80.39       81.57

Arguments: `quick`, which trains a tiny model.
Differs from the paper: sets are files of their own, and copies of STS12 may lack MSRvid.
"""

from experiments import common

DATA = '../shared/data'
SETS = {  # name: folder, split
  'stsb': ('glue_stsb', 'test'),
  'stsb_dev': ('glue_stsb', 'validation'),
  'sickr': ('sick_r', 'train+validation+test'),
  'sickr_test': ('sick_r', 'test'),
  **{f'sts{year}': (f'sts{year}', 'test') for year in range(12, 17)},
}


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=1)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-base')
  c.objective = dict(name='contrastive', partners='fields', similarity_of='cosine', temperature=0.05, pool='mean')
  c.data = common.glue('stsb', layout='bert', length=128, batch_size=64)
  c.optim = common.bert_adam(2e-5, warmup=0.1)
  c.init_from = (dict(source='runs/bert/base', from_='trunk', to='trunk'),)
  c.eval = {
    name: dict(
      data=dict(path=f'{DATA}/{folder}', split=split), scores=('correlation',), optional=tuple(split.split('+'))
    )
    for name, (folder, split) in SETS.items()
  }
  c.best = ('stsb_dev/spearman', 'max')
  c.eval_every, c.save_every = 50, 50
  return common.quick(c, arg)
