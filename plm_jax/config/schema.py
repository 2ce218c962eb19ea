"""The keys of a config.

A config is plain data: the keys of `Run`, some of which hold blocks. A block names a file (`name`) and gives keywords
of its `make`, or has the fields of a class. The annotations say which (see `config/annotations.py`); `blocks.py`
reads them from source and fills in defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from plm_jax.core.keywords import Count, NonNegativeInt, Seed


class Run:
  """The top level of a config.

  Attributes:
    vocab: a file of `text/` and its keywords.
    second_vocab: likewise, for objectives and adapters that read texts of another vocabulary than they write.
    model: a file of `models/` and its keywords.
    data: a file of `data/` and its keywords. `length` is that of raw rows, `batch_size` is over all hosts.
    optim: keywords of `optim.make`, and of the rule and the schedule that it names.
    objective: a file of `objectives/` and its keywords. Exactly one of objective and adapter is given.
    adapter: a file of `adapters/` and its keywords.
    seed: of parameters, data order, noise and dropout.
    steps: number of updates, the horizon of the schedule. Exactly one of steps and epochs is given.
    epochs: passes over the data, of rows / batch size steps each, rounded up, from which the run computes the steps.
    extend: (step, more steps) pairs; from that step on the run, and its schedule, are that much longer. `train
      --extend` adds one.
    skip: (step, batches) pairs; after that step this many batches of the order are skipped. `rewind --skip` adds one.
    accumulate: micro-batches per update.
    log_every: steps between lines of metrics.
    eval_every: steps between evaluations.
    save_every: steps between checkpoints.
    save_minutes: minutes between checkpoints, at a step of `log_every`; longer if a checkpoint takes more than 5 % of
      them. The next checkpoint replaces one that is saved only for this reason. None: only `save_every` counts.
    keep: number of newest checkpoints that are kept, besides the best one.
    save: what checkpoints hold of the parameters: 'all', or 'trained', those that the task trains; then the others are
      read from `init_from` again whenever the run is opened, so its sources must stay.
    best: the metric that decides which checkpoint is best, and 'min' or 'max', as in ('validation/loss', 'min').
    early_stop: the run ends after this many evaluations in a row without a better `best`; None: it does not.
    max_skipped: the run counts as diverged after this many updates in a row that are not finite; None: after no number
      of them. A run none of whose updates was finite has diverged in any case.
    spikes: see `Spikes`; None: the run does not look for them.
    verify_every: steps between checks for silent data corruption (`training/guards/verify.py`), each of which makes its
      step twice; None: none.
    log: where metrics are written besides metrics.jsonl.
    sharding: see `Sharding`.
    execution: see `types.Execution`.
    eval: name -> see `Evaluation`.
    init_from: see `checkpoint.init_from.Entry`. Later entries overwrite earlier ones.
  """

  vocab: Annotated[Mapping[str, Any], 'text']
  model: Annotated[Mapping[str, Any], 'models']
  data: Annotated[Mapping[str, Any], 'data']
  optim: Annotated[Mapping[str, Any], 'optim.optimiser:make']
  objective: Annotated[Mapping[str, Any], 'objectives'] | None = None
  adapter: Annotated[Mapping[str, Any], 'adapters'] | None = None
  second_vocab: Annotated[Mapping[str, Any], 'text'] | None = None
  seed: Seed = 0
  steps: Annotated[int, '1 <= x <= 2_000_000_000'] | None = None
  epochs: Annotated[float, '0 < x <= 1_000_000'] | None = None
  extend: Sequence[tuple[NonNegativeInt, Count]] = ()
  skip: Sequence[tuple[NonNegativeInt, Count]] = ()
  accumulate: Count = 1
  log_every: Count = 100
  eval_every: Count = 1000
  save_every: Count = 1000
  save_minutes: Annotated[float, '0 < x'] | None = 15.0
  keep: Count = 2
  save: Literal['all', 'trained'] = 'all'
  best: tuple[str, Literal['min', 'max']] | None = None
  early_stop: Count | None = None
  max_skipped: Count | None = 10
  spikes: Annotated[Mapping[str, Any], 'config.schema:Spikes'] | None = None
  verify_every: Count | None = None
  log: Sequence[Literal['tensorboard', 'wandb']] = ('tensorboard',)
  sharding: Annotated[Mapping[str, Any], 'config.schema:Sharding'] = field(default_factory=dict)
  execution: Annotated[Mapping[str, Any], 'core.types:Execution'] = field(default_factory=dict)
  eval: Mapping[str, Annotated[Mapping[str, Any], 'config.schema:Evaluation']] = field(default_factory=dict)
  init_from: Sequence[Annotated[Mapping[str, Any], 'checkpoint.init_from:Entry']] = ()


class Sharding:
  """Distribution of a run over devices.

  Attributes:
    mesh: mesh axis ('replica', 'data', 'model', see `sharding.Sizes`) -> number of devices along it, 1 where it is
      missing; one of them may be -1, which takes all that are left.
    rules: a table of `sharding.RULES`, or (axis, mesh axis) pairs.
  """

  mesh: Mapping[Literal['replica', 'data', 'model'], Count | Literal[-1]] = field(default_factory=lambda: {'data': -1})
  rules: Annotated[str, 'core.sharding:RULES'] | Sequence[tuple[str, str | None]] = 'data'


class Spikes:
  """Loss spikes that take a run back to a saved step (Chowdhery et al. 2022, PaLM, section 5.1).

  Attributes:
    deviations: a loss this many standard deviations above its running mean is a spike.
    memory: steps over which the running mean and deviation forget; no step before it is judged.
    back: the run goes back to the newest saved step that is at least this many steps before the spike.
    after: batches that are skipped after the spike, besides those from the saved step to the spike.
    most: most rewinds of a run; later spikes are only logged.
  """

  deviations: Annotated[float, '0 < x'] = 6.0
  memory: Annotated[int, '2 <= x'] = 128
  back: Count = 100
  after: NonNegativeInt = 100
  most: NonNegativeInt = 3


class Evaluation:
  """One evaluation, by its name in `eval`.

  Attributes:
    data: like the block `data`. Keywords that are left out, the name included, are those of `data`.
    task: an objective or adapter without parameters of its own, which is evaluated instead of the trained one, such as
      minimal_pairs during pre-training; None for the trained one.
    every: steps between runs of this evaluation; None takes `eval_every`.
    units: number of words, or of what else published figures count, in the text. It gives 'unit_perplexity', exp of the
      nats of all predicted tokens divided by this number, and 'bits_per_unit' (GPT-2 §3.1), which do not depend on the
      vocabulary.
    scores: files of `plm_jax/scores/` that need all predictions at once; None takes those of the task.
    tokenize: tokens of scores that compare texts, one for each score at most, such as ('characters', 'zh'), of the
      names in `TOKENIZE` of its file; None chooses by the script of the references.
    optional: splits that copies of the data may lack: a run on a folder without them leaves this evaluation out, with a
      line in the log. A folder that lacks any other split is refused, and so is one that `best` needs.
  """

  data: Annotated[Mapping[str, Any], 'data']
  task: Annotated[Mapping[str, Any], 'adapters | objectives'] | None = None
  every: Count | None = None
  units: Count | None = None
  scores: Sequence[Annotated[str, 'scores']] | None = None
  tokenize: Sequence[str] | None = None
  optional: Sequence[str] | None = None
