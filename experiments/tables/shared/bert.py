"""Rows of BERT, ELECTRA and DistilBERT, and the changes that make BERT comparable with SpanBERT."""

from collections.abc import Mapping
from typing import Any

from experiments.tables.shared import scales

SPANBERT_STEPS = 1_200_000  # of the rows of its tables; the paper's final models have twice as many
# what else of BERT's config is not that of spanbert/pretrain.py
LIKE_SPANBERT = dict(
  steps=SPANBERT_STEPS,
  vocab__path='runs/vocab/bert-cased',
  model__variant='spanbert-large',
  optim=dict(
    name='adamw', rate=1e-4, schedule='linear', warmup=10_000, decay=0.1, clip=1.0, b1=0.9, b2=0.999, eps=1e-8
  ),
)  # fmt: skip


# Of a million parameters that read 3 million tokens a generator learns nothing from context without these positions
# (perplexity 246 held out; the plateau of the training text is 293). With them it has 116, and 94 with `WEIGHT`.
# The discriminator beside it still knows little more than the share of replaced tokens (.566 nats a token; .581). One
# that starts from a masked LM, as the text of ELECTRA's §3.3 suggests, has .437 after half as many tokens (.590).
RELATIVE = dict(relative_buckets=32)
WEIGHT = 5.0  # of the loss of discriminators, 50 in the paper


def bert(scale: str, config: str, **keys: Any) -> dict[str, Any]:
  """Return config and keys of a row of BERT; see `scales.pretraining`.

  Only the paper's scale learns next sentences.
  """
  return scales.pretraining(scale, config, *(() if scale == 'paper' else ('mlm',)), **keys)


def electra(scale: str, config: str, **keys: Any) -> dict[str, Any]:
  """Return config and keys of a row of ELECTRA; see `scales.pretraining`.

  At the small scale and on the rungs the generator is half as wide as the trunk. On the rungs 40 % are masked,
  positions are relative as well, and the discriminator's loss has a tenth of the weight, `WEIGHT`.
  """
  is_rung = scale in scales.RUNGS
  small = dict(scales.SIZES, embed_dim=128) | (RELATIVE if is_rung else {})
  if scale == 'small' or is_rung:
    sizes = small | dict(scales.RUNGS[scale][0] if is_rung else {})
    width = sizes['hidden_dim'] // 2
    generator = dict(sizes, hidden_dim=width, mlp_dim=4 * width, num_heads=width // 64)
    keys |= dict(objective__generator__overrides=generator)
  if is_rung:
    keys = dict(objective__weight=WEIGHT) | keys | scales.masks(scale)
  return scales.pretraining(scale, config, small=small, **keys)


def distilled(
  scale: str, teacher_config: str, config: str, *, objective: Mapping[str, Any] | None = None, fresh: bool = False
) -> list[dict[str, Any]]:
  """Return the rows of BERT as a teacher and of DistilBERT after it.

  Args:
    scale: of the table.
    teacher_config: below experiments/.
    config: of the student.
    objective: changes of the student's objective.
    fresh: the student begins with parameters of its own.
  """
  rate = scales.masks(scale, lifted=True)
  deep = dict(scales.SIZES, num_layers=4)
  teacher = bert(scale, teacher_config, small=deep, **rate)
  before = '{before}'  # the run of the teacher
  begin = [dict(source=before, from_='', to='teacher')]
  if not fresh:
    layers = dict(paper=(0, 2, 4, 7, 9, 11), small=(0, 2), tiny=(0, 1))[scale]
    begin += [dict(source=before, layers=layers), dict(source=before, from_='mlm', to='mlm')]
  keys = {f'objective.{key}': value for key, value in (objective or {}).items()}
  if scale == 'small':
    keys |= {'objective.teacher': dict(name='bert', variant='bert-base', overrides=deep)}
    keys |= {'objective.where.rate': 0.4, 'optim.scale': (('teacher/.*', None), ('.*', 1.0)), 'epochs': None}
  student = scales.pretraining(scale, config, small=scales.SIZES)
  return [teacher, dict(student, keys=student['keys'] | keys | {'init_from': tuple(begin)})]
