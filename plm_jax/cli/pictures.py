"""Text in pictures that is not ours: values of configs, names of folders and metrics, words of texts."""


def plain(text: str) -> str:
  """The text for a picture that shows it as it is: matplotlib reads what stands between two dollars as mathematics."""
  return text.replace('$', r'\$')
