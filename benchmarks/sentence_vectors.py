"""Measure `plm_jax.load(FOLDER).encode` beside sentence-transformers in sentences a second.

    python -m benchmarks.sentence_vectors --weights=runs/released/minilm --data=../shared/data/glue_stsb [--rows=1379]
        [--rounds=3] [--threads=2] [--dtype=bfloat16]

The sentences are those of the test pairs, each once. sentence-transformers (PyTorch) sorts them by length and pads each
batch of 32 to its longest; we pad to 12, 16, 24, 32, ... tokens, since each width is compiled. Rounds alternate in one
process, after a warm-up that compiles, so that other load slows both; medians and their ratio are printed, by CPU time
of the process and by clock. Idle threads of PyTorch spin while other load holds a core, which counts as CPU time:
--threads=1 leaves that out. --dtype is ours alone: a CPU with instructions for bfloat16 (AMX) multiplies faster in it.
"""

import argparse
import gzip
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import plm_jax


def main(argv: Sequence[str] | None = None) -> None:
  """Print sentences a second of both sides, and the largest difference of their vectors."""
  import torch
  from sentence_transformers import SentenceTransformer

  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--weights', default='runs/released/minilm')
  parser.add_argument('--data', type=Path, default=Path('../shared/data/glue_stsb'))
  parser.add_argument('--rows', type=int, default=1379)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--threads', type=int, default=2)
  parser.add_argument('--dtype', default='float32')
  arguments = parser.parse_args(argv)
  with gzip.open(arguments.data / 'test.jsonl.gz', 'rt', encoding='utf-8') as file:
    rows = [json.loads(line) for line in file][: arguments.rows]
  texts = list(dict.fromkeys(row[field] for row in rows for field in ('sentence1', 'sentence2')))
  torch.set_num_threads(arguments.threads)
  peer = SentenceTransformer(arguments.weights, device='cpu')
  ours = plm_jax.load(arguments.weights, dtype=arguments.dtype)
  sides: dict[str, Callable[[], Any]] = {
    'plm_jax': lambda: ours.encode(texts),
    'sentence-transformers': lambda: peer.encode(texts, batch_size=32, show_progress_bar=False),
  }
  difference = np.abs(sides['plm_jax']() - sides['sentence-transformers']()).max()  # also warms up
  times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
  for _ in range(arguments.rounds):
    for name, encode in sides.items():
      cpu, clock = _cpu(), time.perf_counter()
      encode()
      times[name].append((_cpu() - cpu, time.perf_counter() - clock))
  print(f'{len(texts)} sentences, {arguments.threads} threads of PyTorch; largest difference {difference:.1e}')
  medians = {name: [statistics.median(each) for each in zip(*pairs, strict=True)] for name, pairs in times.items()}
  for name, (cpu, clock) in medians.items():
    print(f'{name:22} {len(texts) / cpu:8.1f} sentences a CPU second  {len(texts) / clock:8.1f} a second')
  mine, theirs = medians.values()
  print(f'ratio {theirs[0] / mine[0]:.2f} by CPU time, {theirs[1] / mine[1]:.2f} by clock')


def _cpu() -> float:
  used = resource.getrusage(resource.RUSAGE_SELF)
  return used.ru_utime + used.ru_stime


if __name__ == '__main__':
  main()
