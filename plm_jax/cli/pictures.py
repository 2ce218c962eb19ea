"""Pictures: the colours of several things in one, and text that is not ours: values of configs, names of folders and
metrics, words of texts."""

COLOURS = ('#1f5f8b', '#b3541e', '#3c7a3c', '#7a3c7a', '#8a7a1f')


def plain(text: str) -> str:
  """The text for a picture that shows it as it is: matplotlib reads what stands between two dollars as mathematics."""
  return text.replace('$', r'\$')


def label(text: str) -> str:
  """The same for a line of a legend, which leaves out what begins with an underscore: a space stands before that."""
  return plain(f' {text}' if text.startswith('_') else text)
