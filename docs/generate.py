"""Write the pages that are read from the code: commands, keys, plug-ins, papers and results.

    python docs/generate.py

`conf.py` calls `write` before each build. A page whose text did not change is not written again, so that Sphinx builds
only what changed.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / 'docs'), str(ROOT)]

from pages import commands, papers, results, settings  # noqa: E402

FOLDERS = ('papers/family', 'reference/commands', 'reference/plugins', 'results/table')  # hold generated pages only


def pages() -> dict[str, str]:
  """Return path below docs/ -> text for every generated page."""
  return {**commands.pages(), **settings.pages(), **papers.pages(ROOT), **results.pages(ROOT)}


def write(docs: pathlib.Path) -> None:
  """Write the pages that changed, and remove those that are no longer generated."""
  made = pages()
  for name, text in made.items():
    file = docs / name
    if not file.is_file() or file.read_text(encoding='utf-8') != text:
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_text(text, encoding='utf-8')
  for folder in FOLDERS:
    for file in (docs / folder).glob('*.md'):
      if file.relative_to(docs).as_posix() not in made:
        file.unlink()


if __name__ == '__main__':
  write(ROOT / 'docs')
