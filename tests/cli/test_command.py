"""Errors for a --workdir that holds a model without a run."""

import json
import pathlib
import re

import pytest

from plm_jax.commands import evaluate, fill, heads, predict, train
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.weights import folders

FILES = ('--file=in.txt', '--out=out.jsonl')


@pytest.mark.parametrize(
  ('file', 'content', 'kind'),
  [
    ('config.json', {'model_type': 'bert'}, "a model in Hugging Face's format"),
    (folders.MODEL, {'model': {'name': 'bert'}}, 'a converted checkpoint'),
  ],
)
def test_a_model_that_is_no_run_is_named_where_it_is_taken(
  file: str, content: dict[str, object], kind: str, tmp_path: pathlib.Path
) -> None:
  (tmp_path / file).write_text(json.dumps(content))
  workdir = f'--workdir={tmp_path}'
  for asked, flags in ((predict, FILES), (train, ())):
    with pytest.raises(ConfigError) as caught:
      asked.main([workdir, *flags])
    said = str(caught.value)
    assert workdir in said and kind in said
    assert f'plm_jax.load({str(tmp_path)!r})' in said
    assert f'plm-jax evaluate --config=FILE --weights={tmp_path}' in said
    assert 'plm-jax convert' not in said
  for asked, flags in ((fill, ('--text=a',)), (heads, ('--text=a', '--out=a.png')), (evaluate, ())):
    with pytest.raises(ConfigError, match=f'{kind}.*--weights'):
      asked.main([workdir, *flags])


def test_a_folder_without_a_model_is_no_run(tmp_path: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match=r'--workdir=.*config\.json'):
    predict.main([f'--workdir={tmp_path}', *FILES])
  with pytest.raises(ConfigError, match=r'nowhere.*folder'):
    predict.main([f'--workdir={tmp_path / "nowhere"}', *FILES])


def test_the_file_of_an_import_has_one_name() -> None:
  assert files.IMPORT == folders.MODEL


@pytest.mark.parametrize(
  ('word', 'said'),
  [
    ('--list=all', '--list takes no value: write --list instead of --list=all'),
    ('--step', '--step needs a value: write --step=VALUE'),
  ],
)
def test_a_value_too_much_or_too_few_is_named(word: str, said: str) -> None:
  with pytest.raises(ConfigError, match=re.escape(said)):
    evaluate.main([word])
