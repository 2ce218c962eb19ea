"""Evaluate sentence vectors with the package mteb.

plm-jax mteb --weights=FOLDER --tasks=STSBenchmark,SICK-R --out=scores.json
plm-jax mteb --workdir=runs/contrastive/simcse --tasks=Mine --include_path=tasks.py

FOLDER is in Hugging Face's format, with its tokenizer, or a converted checkpoint. A folder of sentence-transformers is
followed; the vector of another is the mean of its token states. mteb is an optional dependency: bash launch/setup.sh
mteb. It downloads the data of its own tasks.

--include_path=FILE executes a Python file (or those of a folder) with tasks of your own, whose data may be files:

    import datasets, mteb
    from mteb.abstasks import AbsTaskSTS

    class Mine(AbsTaskSTS):
      min_score, max_score = 0, 5
      metadata = mteb.TaskMetadata(
        name='Mine', description='pairs', type='STS', eval_splits=['test'], eval_langs=['eng-Latn'],
        main_score='cosine_spearman', dataset={'path': 'none', 'revision': 'none'},
      )

      def load_data(self, **settings):
        rows = datasets.Dataset.from_json('/data/pairs.jsonl')  # sentence1, sentence2, score
        self.dataset, self.data_loaded = {'test': rows}, True
"""

import json
from collections.abc import Sequence

from plm_jax.cli import command, logs, signals
from plm_jax.commands import lm_eval
from plm_jax.core.errors import ConfigError, is_installed
from plm_jax.io import files


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax mteb`; import jax and mteb only for valid flags."""
  parser = command.Parser('plm-jax mteb', __doc__)
  lm_eval.add_model(parser, tasks='tasks of mteb or of --include_path', out='JSON file for the results of mteb')
  parser.add_argument('--include_path', metavar='FILE', help='Python file or folder with more tasks')
  parser.add_argument('--batch_size', type=command.COUNT, default=32, help='texts per batch (default %(default)s)')
  arguments = parser.parse_args(argv)
  folder, names = lm_eval.checked(parser, arguments, example='STSBenchmark,SICK-R')
  if arguments.include_path is not None and not files.exists(files.path(arguments.include_path)):
    raise ConfigError(f'--include_path={arguments.include_path}: there is no such file or folder')
  if not is_installed('mteb'):
    raise ConfigError('mteb: the package mteb is not installed; run: bash launch/setup.sh mteb')
  from plm_jax.inference import embedding_benchmark, model

  logs.start()
  opened = model.load(folder, step=arguments.step, part=arguments.part, batch_size=arguments.batch_size)
  results = embedding_benchmark.run(opened, names, include_path=arguments.include_path)
  for task, result in results.items():
    for split, subsets in result['scores'].items():
      for scores in subsets:
        print(f'{task} {split} {scores["hf_subset"]} main_score {scores["main_score"]:.6g}')
  if arguments.out:
    files.write_json(arguments.out, json.loads(json.dumps(results, default=str)))
  return 0
