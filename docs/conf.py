"""Settings of the documentation site. `bash launch/docs.sh` builds it."""

import pathlib
import re
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import plm_jax  # noqa: E402

project = 'plm_jax'
author = 'plm_jax contributors'
copyright = 'plm_jax contributors'
version = release = plm_jax.__version__

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon', 'sphinx.ext.viewcode']
myst_enable_extensions = ['colon_fence', 'deflist', 'attrs_inline', 'attrs_block']
myst_heading_anchors = 3
exclude_patterns = ['_build', 'README.md']
default_role = 'code'  # single backticks in docstrings are code
highlight_language = 'none'
smartquotes_action = 'D'  # dashes; flags are code
autodoc_member_order = 'bysource'
autodoc_typehints = 'description'
autodoc_typehints_description_target = 'documented'
napoleon_use_rtype = False
viewcode_enable_epub = False

html_theme = 'sphinx_book_theme'
html_title = f'plm_jax {release}'
html_static_path = ['_static']
html_css_files = ['site.css']
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
  'use_download_button': False,
  'use_fullscreen_button': False,
  'show_toc_level': 2,
  'navigation_with_keys': False,
}


def plain(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
  """Escape in docstrings what only reStructuredText gives a meaning; they are plain text with code in backticks.

  The lines below 'Example:' are code.
  """
  del app, what, name, thing, options
  made: list[str] = []
  in_code = False
  for line in lines:
    begins = line.strip() in ('Example:', 'Examples:')
    in_code = begins or (in_code and (not line.strip() or line.startswith(' ')))
    if begins:
      made += [f'{line}:', '']  # a literal block of reStructuredText
    elif in_code:
      made.append(line)
    else:
      parts = re.split(r'(`+[^`]*`+)', line)
      parts[::2] = [re.sub(r'(?<!^)([*|]|(?<=\w)_(?!\w))', r'\\\1', part) for part in parts[::2]]
      made.append(''.join(parts))
  lines[:] = made


def setup(app: Any) -> None:
  """Write the generated pages before Sphinx looks for sources."""
  app.connect('config-inited', lambda app, config: generate.write(HERE))
  app.connect('autodoc-process-docstring', plain, priority=400)
