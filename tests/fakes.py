"""A small package on disk with the folders of `plm_jax`, so that tests of configs do not depend on any real file."""

import pathlib

from plm_jax.config import schema, signatures

FILES = {
  'core/keywords.py': """
    from typing import Annotated

    Count = Annotated[int, '1 <= x']
    NonNegativeInt = Annotated[int, '0 <= x']
    Seed = Annotated[int, '0 <= x < 4_294_967_296']
    """,
  'core/types.py': """
    import dataclasses
    from typing import Literal

    import jax_is_not_imported_by_reading_signatures

    @dataclasses.dataclass(frozen=True)
    class Execution:
      dtype: Literal['float32', 'bfloat16'] = 'float32'
      remat: Literal['none', 'dots', 'full'] = 'none'
    """,
  'core/sharding.py': """
    RULES: dict[str, object] = {'data': (('batch', 'data'),), 'fsdp': ()}
    """,
  'optim/rules.py': """
    def adamw(context, *, b1: float = 0.9): ...
    def lamb(context, *, b1: float | None = None, adapt: bool = True): ...
    def _hidden(context): ...
    def helper(decays): ...
    """,
  'optim/schedules.py': """
    def linear(step, *, steps, warmup: int): ...
    def cosine(step, *, steps, warmup: int, floor: float = 0.0): ...
    """,
  'optim/optimiser.py': """
    from collections.abc import Sequence
    from typing import Any

    from PACKAGE.optim.groups import Groups

    def make(*, params: Any, steps: int, rate: float, name: Annotated[str, 'optim.rules'] = 'adamw',
             schedule: Annotated[str, 'optim.schedules'] = 'linear', warmup: int | float = 0,
             decay: Groups | float = 0.0, clip: float | None = None, **rest): ...
    """,
  'checkpoint/init_from.py': """
    import dataclasses
    from typing import Literal

    Step = int | Literal['newest', 'best'] | None

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Entry:
      source: str
      step: Step = None
      from_: str = 'trunk'
      to: str = 'trunk'

      @property
      def name(self): ...
    """,
  'optim/groups.py': """
    from collections.abc import Sequence
    from typing import Any

    Groups = Sequence[tuple[str, Any]]
    """,
  'text/pieces.py': '''
    """Word pieces.

    More about them.
    """

    def make(*, path: str, extra: tuple[str, ...] = ()):
      return ('vocab', path, extra)
    ''',
  'models/small.py': '''
    """Small: an encoder (Nobody 2018)."""

    from __future__ import annotations

    from types import MappingProxyType

    Paper = Execution = compute = dict
    PAPER = Paper(year=2018, title='Nobody, Small', architecture='encoder', objective_family='denoising',
                  adapters=('classify',), size=compute())

    class Config:
      """Sizes."""
      hidden_dim: int = 768
      dropout: float = 0.1
      window: int | None = None

    CONFIGS: dict[str, Config] = MappingProxyType({'small-base': Config(), 'tiny': Config()})

    def make(*, vocab_size: int, variant: str, overrides: Mapping[str, Any] | None = None,
             execution: Execution = Execution()):
      return ('model', vocab_size, variant, overrides)
    ''',
  'noise/where/tokens.py': '''
    """Which tokens."""

    def fixed_count(key, row, *, rate: float = 0.15, max_count: int | None = None):
      """So many tokens."""
      return rate, max_count

    def iid(key, row, *, rate: float = 0.15): return rate

    def _private(key): ...

    def helper(length): ...
    ''',
  'noise/edit.py': """
    def to_mask(key, row, spans, *, mask_id: int): return mask_id

    def mixed(key, row, spans, *, mask_id: int, vocab_size: int, mask: float = 0.8): return mask_id, vocab_size, mask
    """,
  'objectives/masked.py': """
    COPIES = 5 * 2
    READS = ('tokens', 'segment_ids')

    def make(*, trunk, vocab, where: Annotated[Mapping[str, Any], 'noise.where'] = {'name': 'fixed_count'},
             edit: Annotated[Mapping[str, Any], 'noise.edit'] | None = None,
             masking: Literal['dynamic', 'static'] = 'dynamic', copies: int = COPIES):
      return trunk, vocab, where, masking, copies
    """,
  'adapters/classify.py': """
    READS = ('tokens', 'label')

    def make(*, trunk, vocab, classes: int = 2, layers: tuple[int, ...] = (), frozen: bool = False):
      return classes, layers
    """,
  'adapters/wrap.py': """
    READS = ()

    def make(*, trunk, vocab, inner: Annotated[Mapping[str, Any], 'adapters'], rank: int = 8): ...
    """,
  'data/stream.py': """
    GIVES = ('tokens', 'segment_ids')
    Layout = Literal['documents', 'full']

    def make(*, vocab, path: str, split: str = 'train', length: int, batch_size: int, seed: int,
             layout: Layout = 'documents', fields: tuple[str, str] | None = None, per_class: int | None = None,
             cache: str = '~/.cache', host: int = 0, hosts: int = 1): ...
    """,
  'data/labelled.py': """
    GIVES = ('tokens', 'segment_ids', 'label')

    def make(*, vocab, path: str, split: str = 'train', length: int, batch_size: int, seed: int,
             host: int = 0, hosts: int = 1): ...
    """,
  'data/mixture.py': """
    GIVES = ('part',)

    def make(*, vocab, parts: Mapping[str, Annotated[Mapping[str, Any], 'data']], split: str = 'train', length: int,
             batch_size: int, seed: int, host: int = 0, hosts: int = 1): ...
    """,
  'data/store.py': """
    def tokenise(text): ...
    """,
  'data/_private.py': """
    def make(): ...
    """,
}


def write(folder: pathlib.Path) -> pathlib.Path:
  """Writes the package below a folder; its name differs from test to test, as imports are remembered by name."""
  root = folder / f'fake_{abs(hash(str(folder)))}'
  for name, text in FILES.items():
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = text.replace('PACKAGE', root.name).strip('\n').split('\n')
    file.write_text('\n'.join(line.removeprefix('    ') for line in lines) + '\n')
  (root / 'config').mkdir(exist_ok=True)
  source = pathlib.Path(schema.__file__).read_text()
  (root / 'config' / 'schema.py').write_text(source.replace('from plm_jax', f'from {root.name}'))
  return root


def use(monkeypatch, folder: pathlib.Path) -> pathlib.Path:
  """Writes the package and lets signatures be read, and modules imported, from it."""
  root = write(folder)
  monkeypatch.setattr(signatures, 'ROOT', root)
  monkeypatch.syspath_prepend(str(folder))
  return root
