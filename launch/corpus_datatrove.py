"""Tokenise and clean corpora on several workers with datatrove; `bash launch/corpus.sh prepare|clean` runs it.

The environment of requirements/cleaning.txt has no jax and no plm_jax. Parts of a store are made by `plm-jax prepare
--shard=I/N` with the interpreter $PYTHON.
"""

import argparse
import ctypes
import gzip
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

RULES = ('gopher_quality', 'gopher_repetition', 'c4', 'fineweb')
TRIES = 3  # of a task that is killed
STOPPED = (signal.SIGINT, signal.SIGTERM)
ENDS = ('.jsonl', '.jsonl.gz', '.jsonl.zst', '.parquet')
LOGS = pathlib.Path('runs/corpus')
HERE = str(pathlib.Path(__file__).resolve().parent)

try:
  from datatrove.pipeline.base import PipelineStep
except ImportError:  # only flags are checked
  PipelineStep = object


class Failed(Exception):
  """A task that would fail again: its message and the exit status."""


def end_with_parent():
  """Ask Linux for SIGTERM when the parent ends, so that no task outlives a killed call."""
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Prepare(PipelineStep):
  """`plm-jax prepare`, of the part that is this task's rank or, if `joins`, of all parts."""

  type, name = 'plm-jax', 'prepare'

  def __init__(self, words, *, python, joins):
    super().__init__()
    self.words, self.python, self.joins, self.cwd = words, python, joins, os.getcwd()
    self.path = os.environ.get('PYTHONPATH', '')  # of this call, with plm_jax

  def run(self, data=None, rank=0, world_size=1):
    part = [] if self.joins else [f'--shard={rank}/{world_size}']
    threads = dict.fromkeys(('RAYON_NUM_THREADS', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'), '1')
    env = {**os.environ, **({} if self.joins else threads), 'PYTHONPATH': self.path}
    for _ in range(TRIES):
      done = subprocess.run(
        [self.python, '-m', 'plm_jax', 'prepare', *part, *self.words],
        cwd=self.cwd, env=env, capture_output=True, text=True, check=False, preexec_fn=end_with_parent,
      )  # fmt: skip
      if done.returncode >= 0 or -done.returncode in STOPPED:
        break
      self.stat_update('killed')
    if done.returncode:
      raise Failed(
        done.stderr.strip()
        or f'part {rank} was killed {TRIES} times: use fewer --workers if memory ran out, then the same command',
        done.returncode,
      )
    print(done.stdout if self.joins else '', end='', flush=True)
    self.stat_update('parts')
    yield from data or ()


def stages_of_prepare(flags):
  """Return (name, pipeline, tasks) of each stage."""
  python = flags.python
  return [
    ('parts', [Prepare(flags.words, python=python, joins=False)], flags.shards),
    ('join', [Prepare(flags.words, python=python, joins=True)], 1),
  ]


class Index(PipelineStep):
  """Hashes of the n-grams of evaluation sets, for datatrove's filter; its own block needs lighteval."""

  type, name = 'plm-jax', 'index of evaluation sets'

  def __init__(self, sources, out, config):
    super().__init__()
    self.sources, self.out, self.config = sources, out, config

  def run(self, data=None, rank=0, world_size=1):
    import numpy as np
    from datatrove.utils.hashing import create_hash_func
    from datatrove.utils.text import ngrams, simplify_text
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    words, hashed = load_word_tokenizer('eng').word_tokenize, create_hash_func(self.config.hash_config)
    pathlib.Path(self.out).mkdir(parents=True, exist_ok=True)
    for number, source in enumerate(self.sources):
      hashes = set()
      for file in files_of(source):
        for text in rows_of(file):
          grams = list(ngrams(words(simplify_text(text, self.config.norm_config)), self.config.n_grams))
          self.stat_update('texts' if grams else 'too_short')
          hashes.update(hashed(' '.join(gram)) for gram in grams)
      descr = np.dtype(self.config.hash_config.np_descr)
      np.array(sorted(hashes), descr).tofile(f'{self.out}/{number}-{pathlib.Path(source).name}.index.hashes')
    yield from data or ()


def rows_of(file):
  """Yield every string of a .jsonl file's rows."""
  with file.open() as lines:
    left = [json.loads(line) for line in lines]
  while left:
    value = left.pop()
    if isinstance(value, str):
      yield value
    elif isinstance(value, list | dict):
      left.extend(value.values() if isinstance(value, dict) else value)


def files_of(source):
  path = pathlib.Path(source)
  return [path] if path.is_file() else sorted(file for end in ENDS for file in path.rglob(f'*{end}'))


def text_alone(writer, document):
  return {'text': document.text}


def stages_of_clean(flags):
  """Return (name, pipeline, tasks) of each stage: filters, four of MinHash, three of sentences."""
  from datatrove.pipeline import dedup, filters, readers, writers
  from datatrove.pipeline.decont import NGramsDecontConfig, NGramsDecontFilter
  from datatrove.pipeline.dedup.minhash import MinhashConfig
  from datatrove.utils.hashing import HashConfig

  out, tasks, last, stages = flags.out, flags.tasks, flags.passes[-1], []
  source = given = str(flags.source)

  def read():
    if source != given:  # what an earlier pass wrote
      return readers.JsonlReader(source)
    if flags.parquet:
      return readers.ParquetReader(source, text_key=flags.text, glob_pattern='**.parquet')
    return readers.JsonlReader(source, text_key=flags.text)

  def write(name):
    folder = str(out if name == last else out / 'work' / name)
    return writers.JsonlWriter(folder, output_filename='${rank}.jsonl', compression=None, adapter=text_alone), folder

  def left_out(name):
    return writers.JsonlWriter(str(out / 'left_out' / name), output_filename='${rank}.jsonl', compression=None)

  if 'filter' in flags.passes:
    rules = {
      'gopher_quality': filters.GopherQualityFilter,
      'gopher_repetition': filters.GopherRepetitionFilter,
      'c4': lambda **writer: filters.C4QualityFilter(min_num_sentences=3, min_words_per_line=5, **writer),  # T5's code
      'fineweb': filters.FineWebQualityFilter,
    }
    blocks = [rules[rule](exclusion_writer=left_out(rule)) for rule in flags.rules]
    if flags.against:
      config, index = NGramsDecontConfig(n_grams=13), str(out / 'work' / 'index')
      stages.append(('index', [Index([str(path) for path in flags.against], index, config)], 1))
      blocks.append(NGramsDecontFilter(index, config, exclusion_writer=left_out('against')))
    writer, folder = write('filter')
    stages.append(('filter', [read(), *blocks, writer], tasks))
    source = folder
  if 'minhash' in flags.passes:
    config = MinhashConfig(hash_config=HashConfig(precision=64), num_buckets=14, hashes_per_bucket=8, n_grams=5)
    signs, pairs, removed = (str(out / 'work' / f'minhash_{name}') for name in ('signs', 'pairs', 'removed'))
    writer, folder = write('minhash')
    stages += [
      ('minhash_1', [read(), dedup.MinhashDedupSignature(signs, config)], tasks),
      ('minhash_2', [dedup.MinhashDedupBuckets(signs, pairs, config=config)], config.num_buckets),
      ('minhash_3', [dedup.MinhashDedupCluster(pairs, removed, config)], 1),
      ('minhash_4', [read(), dedup.MinhashDedupFilter(removed, left_out('minhash')), writer], tasks),
    ]
    source = folder
  if 'sentences' in flags.passes:
    config = dedup.SentDedupConfig(n_sentences=3, min_doc_words=0, only_dedup_in_index=False)
    signs, copies = (str(out / 'work' / f'sentences_{name}') for name in ('signs', 'copies'))
    stages += [
      ('sentences_1', [read(), dedup.SentenceDedupSignature(signs, config=config)], tasks),
      ('sentences_2', [dedup.SentenceFindDedups(signs, copies, config=config)], 1),
      (
        'sentences_3',
        [read(), dedup.SentenceDedupFilter(copies, config, left_out('sentences')), write('sentences')[0]],
        tasks,
      ),
    ]
  return stages


def executor(stage, flags, before=None):
  """Build the engine's executor of a stage."""
  from datatrove import executor as engines

  name, pipeline, tasks = stage
  common = dict(pipeline=pipeline, tasks=tasks, logging_dir=str(flags.logs / name))
  if flags.executor == 'slurm':
    return engines.SlurmPipelineExecutor(
      **common, workers=flags.workers, time=flags.time, partition=flags.partition, mem_per_cpu_gb=flags.memory,
      job_name=f'{flags.command}-{name}', qos=None, env_command=f'export PATH={sys.prefix}/bin:$PATH PYTHONPATH={HERE}',
      sbatch_args=dict(word.split('=', 1) for word in flags.sbatch), depends=before,
    )  # fmt: skip
  if flags.executor == 'ray':
    return engines.RayPipelineExecutor(**common, workers=flags.workers, mem_per_cpu_gb=flags.memory)
  return engines.LocalPipelineExecutor(**common)


def run_task(stage, flags, rank):
  """Make one task in a process that may be killed, up to three times."""
  log = flags.logs / stage[0] / f'stderr_{rank:05d}.txt'
  log.parent.mkdir(parents=True, exist_ok=True)
  for attempt in range(1, TRIES + 1):
    words = [sys.executable, __file__, f'--task={stage[0]}/{rank}', f'--logs={flags.logs}', *flags.own]
    with log.open('w') as stderr:  # not a pipe: what a killed task leaves would hold it open
      done = subprocess.run(words, stderr=stderr, check=False, preexec_fn=end_with_parent)
    if done.returncode >= 0 or -done.returncode in STOPPED or attempt == TRIES:
      break
  if done.returncode:
    written = log.read_text().strip()
    last = f'task {rank} of {stage[0]} failed: {written.rpartition(chr(10))[2]} (see {log}, then the same command)'
    if done.returncode < 0:
      last = f'task {rank} of {stage[0]} was killed {attempt} times: use fewer --workers if memory ran out'
    raise Failed(written.rpartition('Failed: ')[2] if 'Failed: ' in written else last, done.returncode)


def run_local(stage, flags):
  from tqdm import tqdm

  name, _, tasks = stage
  with ThreadPoolExecutor(flags.workers) as pool:
    ranks = executor(stage, flags).get_incomplete_ranks()
    futures = [pool.submit(run_task, stage, flags, rank) for rank in ranks]
    try:
      for future in tqdm(as_completed(futures), total=len(ranks), desc=name, unit='task', disable=tasks == 1):
        future.result()
    except BaseException:
      pool.shutdown(wait=False, cancel_futures=True)
      raise


def run_ray(stage, flags):
  import ray

  if not ray.is_initialized():
    ray.init(address=flags.address, log_to_driver=False, runtime_env={'env_vars': {'PYTHONPATH': HERE}})
  engine = executor(stage, flags)
  engine.run()
  if left := engine.get_incomplete_ranks(skip_completed=True):
    log = flags.logs / stage[0] / 'logs' / f'task_{left[0]:05d}.log'
    raise Failed(f'{len(left)} of {stage[2]} tasks of {stage[0]} failed: see {log}, then the same command', 1)


def run(stages, flags):
  if flags.executor == 'slurm':
    before = None
    for stage in stages:
      before = executor(stage, flags, before)
      before.run()
    print(
      f'submitted: `squeue --me` lists the jobs, and {flags.logs} gets their logs. If a job fails: the same command'
    )
    return
  for stage in stages:
    (run_ray if flags.executor == 'ray' else run_local)(stage, flags)
  show(stages, flags)


def show(stages, flags):
  """Print what each block read, kept and removed, summed over tasks."""
  for name, _, tasks in stages:
    blocks = {}
    for rank in range(tasks):
      file = flags.logs / name / 'stats' / f'{rank:05d}.json'
      for at, block in enumerate(json.loads(file.read_text())):
        counts = blocks.setdefault((at, block['name']), {})
        for key, value in block['stats'].items():
          if key.startswith(('doc_len', 'input_files', 'line-', 'cluster')):
            continue
          counts[key] = counts.get(key, 0) + (value if isinstance(value, int | float) else value['total'])
    for (_, block), counts in blocks.items():
      print(f'{name}, {block}: ' + ', '.join(f'{key} {count:,.0f}' for key, count in counts.items()))


class Parser(argparse.ArgumentParser):
  """A parser whose errors are one line."""

  def error(self, message):
    self.exit(2, f'[corpus] {message}. --help lists the flags\n')


def parse(words):
  parser = Parser(prog='corpus.sh', allow_abbrev=False)
  parser.add_argument('--check', action='store_true', help=argparse.SUPPRESS)
  parser.add_argument('--task', help=argparse.SUPPRESS)
  parser.add_argument('--logs', type=pathlib.Path, help=argparse.SUPPRESS)
  commands = parser.add_subparsers(dest='command', required=True)
  prepare = commands.add_parser('prepare', help='tokenise a corpus on several workers')
  prepare.add_argument('--shards', type=positive, metavar='N', help='parts (default: 4 for each worker)')
  clean = commands.add_parser('clean', help='filter and deduplicate a corpus on several workers')
  clean.add_argument(
    'source', metavar='SOURCE', type=pathlib.Path, help='folder of .jsonl (.gz, .zst) or .parquet files'
  )
  clean.add_argument('out', metavar='OUT', type=pathlib.Path, help="new folder: data.path='OUT/*.jsonl'")
  clean.add_argument('--rules', choices=RULES, action='append', default=[], help='published rules; may be repeated')
  help_ = 'remove documents with 13 words of these .jsonl files in a row; may be repeated'
  clean.add_argument('--against', metavar='PATH', type=pathlib.Path, action='append', default=[], help=help_)
  clean.add_argument('--minhash', action='store_true', help='remove near duplicates (5-word sequences, 14 bands of 8)')
  clean.add_argument(
    '--sentences', action='store_true', help='remove all but one of equal spans of three sentences (C4)'
  )
  clean.add_argument('--text', default='text', metavar='FIELD', help='field of the text (default: text)')
  clean.add_argument('--tasks', type=positive, metavar='N', help='parts, of whole files (default: 4 for each worker)')
  for command in (prepare, clean):
    add = command.add_argument
    add('--workers', type=positive, metavar='N', help='tasks at once (default: one for each core; slurm, ray: 16)')
    add('--executor', choices=('local', 'slurm', 'ray'), default='local', help='engine (default: local)')
    add('--memory', type=positive, default=2, metavar='GB', help='memory of a task, for slurm and ray (default: 2)')
    add('--address', default='auto', help='address of the Ray cluster (default: that of this machine)')
    add('--partition', help='SLURM partition')
    add('--time', default='24:00:00', help='SLURM time limit of a task (default: 24:00:00)')
    add('--sbatch', action='append', default=[], metavar='KEY=VALUE', help='further option of sbatch; may be repeated')
  own, after = words, []
  if '--' in words:
    own, after = words[: words.index('--')], words[words.index('--') + 1 :]
  flags = parser.parse_args(own)
  flags.own, flags.words = words[words.index(flags.command) :], after
  flags.python = os.environ.get('PYTHON') or sys.executable
  cores = len(os.sched_getaffinity(0)) if sys.platform == 'linux' else os.cpu_count()
  flags.workers = flags.workers or (cores if flags.executor == 'local' else 16)
  if flags.executor == 'slurm' and not flags.partition:
    parser.error('--executor=slurm needs --partition=NAME (`sinfo` lists them)')
  if flags.executor == 'slurm' and not shutil.which('sbatch'):
    parser.error('--executor=slurm: there is no sbatch here; call it on a login node')
  if bad := [word for word in flags.sbatch if '=' not in word]:
    parser.error(f'--sbatch={bad[0]}: expected KEY=VALUE, such as --sbatch=account=NAME')
  (check_clean if flags.command == 'clean' else check_prepare)(flags, parser)
  return flags


def positive(text):
  if not text.isdecimal() or not int(text):
    raise argparse.ArgumentTypeError(f'{text!r} is not a whole number of 1 or more')
  return int(text)


def check_prepare(flags, parser):
  flags.shards = flags.shards or 4 * flags.workers
  flags.logs = flags.logs or LOGS.resolve() / f'prepare-{time.strftime("%Y%m%d-%H%M%S")}-{os.getpid()}'
  if given := [word for word in flags.words if word.startswith('--shard') and not word.startswith('--shared')]:
    parser.error(f'{given[0]}: leave it out; --shards=N before -- sets the number of parts')
  if not flags.words:
    parser.error('flags of plm-jax prepare come after --: bash launch/corpus.sh prepare -- --config=FILE')
  if flags.check:
    words = [flags.python, '-m', 'plm_jax', 'prepare', *flags.words, '--print_config']
    done = subprocess.run(words, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
      sys.exit(done.returncode)


def check_clean(flags, parser):
  source, out = flags.source, flags.out = flags.source.resolve(), flags.out.resolve()
  files = files_of(source)
  ways = {'filter': flags.rules or flags.against, 'minhash': flags.minhash, 'sentences': flags.sentences}
  flags.passes = [name for name, asked in ways.items() if asked]
  if not flags.passes:
    parser.error(f'clean needs --rules ({", ".join(RULES)}), --against, --minhash or --sentences')
  for path in (source, *flags.against):
    if not files_of(path):
      parser.error(f'{path} has no {", ".join(ENDS)}: name a folder of such files')
  if bad := [file for path in flags.against for file in files_of(path) if file.suffix != '.jsonl']:
    parser.error(f'--against reads .jsonl files, and {bad[0]} is none: unzip or convert it')
  check_field(files[0], flags.text, parser)
  flags.parquet = files[0].suffix == '.parquet'
  if any((file.suffix == '.parquet') != flags.parquet for file in files):
    parser.error(f'{source} has .parquet and .jsonl files: name a folder of one kind')
  flags.tasks = min(flags.tasks or 4 * flags.workers, len(files))
  flags.logs = out / 'logs'
  names = ('rules', 'against', 'minhash', 'sentences', 'text', 'tasks')
  asked = {name: str(vars(flags)[name]) for name in names}
  asked['source'] = [[str(file), file.stat().st_size] for file in files]
  options = out / 'options.json'
  if out.exists() and not options.exists() and any(out.iterdir()):
    parser.error(f'{out} holds something else: name another folder')
  if options.exists() and (old := json.loads(options.read_text())) != asked:
    key = next(key for key in asked if old.get(key) != asked[key])
    parser.error(f'{out} was made with another {key}: name another folder, or repeat its command')
  if not flags.check and not options.exists():
    out.mkdir(parents=True, exist_ok=True)
    (out / 'options.new').write_text(json.dumps(asked, indent=1))
    (out / 'options.new').rename(options)


def check_field(file, field, parser):
  """Refuse a file of JSON lines whose first row lacks the text; datatrove would skip all rows."""
  if not file.name.endswith(('.jsonl', '.jsonl.gz')):
    return
  with gzip.open(file, 'rt') if file.suffix == '.gz' else file.open() as lines:
    line = lines.readline()
  try:
    row = json.loads(line)
    fields = [key for key, value in row.items() if isinstance(value, str)]
  except (ValueError, AttributeError):
    parser.error(f'{file}: the first line is no JSON object')
  if field not in fields:
    parser.error(f'{file} has no text in the field {field!r}: --text=FIELD with one of {", ".join(fields) or "none"}')


def main(words):
  flags = parse(words)
  if flags.check:
    return 0
  stages = (stages_of_clean if flags.command == 'clean' else stages_of_prepare)(flags)
  try:
    if flags.task:
      end_with_parent()
      name, _, rank = flags.task.rpartition('/')
      (stage,) = (stage for stage in stages if stage[0] == name)
      executor(stage, flags)._run_for_rank(int(rank))  # `run` adds a pool that waits for killed workers for ever
    else:
      flags.logs.mkdir(parents=True, exist_ok=True)
      run(stages, flags)
  except Failed as error:
    message, status = error.args
    print(f'Failed: {message}' if flags.task else message, file=sys.stderr)
    return status if status > 0 else 1
  except KeyboardInterrupt:
    return 130
  return 0


if __name__ == '__main__':
  import corpus_datatrove  # pickled by this name, which processes on other machines can import

  sys.exit(corpus_datatrove.main(sys.argv[1:]))
