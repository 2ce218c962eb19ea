"""Files and settings of a published tokenizer, and the families of tokenizers that transformers builds from them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from plm_jax.io import checksums, files
from plm_jax.text.spec import Spec

TOKENIZER, WORDS, IDS, MERGES = 'tokenizer.json', 'vocab.txt', 'vocab.json', 'merges.txt'
MODELS = ('sentencepiece.bpe.model', 'spiece.model', 'spm.model', 'tokenizer.model')
FAIRSEQ = MODELS[0]
SETTINGS = ('config.json', 'special_tokens_map.json', 'tokenizer_config.json')  # later ones overwrite
FLAGS = (  # of settings
  'do_lower_case', 'keep_accents', 'strip_accents', 'tokenize_chinese_chars', 'add_prefix_space', 'add_bos_token',
  'add_eos_token', 'split_by_punct',
)  # fmt: skip
# names of classes and models of transformers, by the tokenizer that it builds for them
BERTS = (
  'bert', 'distilbert', 'electra', 'ernie', 'layoutlm', 'lxmert', 'megatronbert', 'mobilebert', 'nezha', 'realm',
  'squeezebert', 'visualbert',
)  # fmt: skip
ROBERTAS = ('roberta', 'bart', 'longformer', 'led', 'data2vectext', 'ibert', 'robertaprelayernorm')
GPTS = ('gpt2', 'gptneo', 'gptj', 'opt', 'codegen')
WORD_LISTS = (*BERTS, 'convbert', 'dprcontextencoder', 'dprquestionencoder', 'dprreader')  # have a vocab.txt
MERGED = (*ROBERTAS, *GPTS, 'deberta', 'openaigpt', 'herbert')  # have a vocab.json and merges.txt
NO_CLASS = (  # model types whose tokenizer_class is ignored
  'gpt_bigcode', 'nystromformer', 'umt5', 'xlm-roberta-xl', 'bigbird_pegasus', 'pegasus_x', 'glm', 'glm4', 'mistral',
  'mixtral', 'ministral', 'olmo2', 'olmo3', 'granite', 'granitemoe', 'stablelm', 'persimmon', 'phi3', 'phimoe',
  'modernbert', 'modernbert-decoder', 'internlm2', 'internlm3', 'minicpm3', 'nemotron', 'jamba', 'arctic', 'ernie4_5',
)  # fmt: skip
AS_IT_IS = ('PreTrainedTokenizer', 'PreTrainedTokenizerFast', 'TokenizersBackend', 'PythonBackend')
NAMES = ('bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask')  # roles, in the order in which missing ones are added


def read_table(file: Path) -> dict[str, Any]:
  """Read a JSON object; raise ValueError if damaged, RunError if changed."""
  try:
    content = checksums.read_json(file)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'is damaged ({file.name}: {error})') from error
  if not isinstance(content, dict):
    raise ValueError(f'is damaged ({file.name} is no JSON object)')
  return content


def text_of(file: Path) -> str:
  """Read a text file; raise ValueError with its name unless UTF-8."""
  try:
    return files.read_utf8(file).removeprefix('\ufeff')  # a byte order mark, by editors of Windows
  except ValueError as error:
    raise ValueError(f'is damaged ({file.name}: {error})') from error


def settings_of(folder: Path) -> dict[str, Any]:
  """Read the settings next to a tokenizer as one table."""
  settings: dict[str, Any] = {}
  for name in SETTINGS:
    if files.is_file(folder / name):
      entries = {key: value for key, value in read_table(folder / name).items() if value is not None}
      for key in FLAGS:
        if not isinstance(entries.get(key, False), bool):
          raise ValueError(f'is damaged ({name}: {key} is {entries[key]!r}, and must be true or false)')
      settings |= (
        entries if name == SETTINGS[-1] else {key: value for key, value in entries.items() if key not in FLAGS}
      )
  return settings


def names_of(settings: Spec) -> dict[str, str]:
  """Map roles to the tokens that the settings name."""
  given = {role: settings.get(f'{role}_token') for role in NAMES}
  texts = {role: value.get('content') if isinstance(value, Mapping) else value for role, value in given.items()}
  return {role: text for role, text in texts.items() if isinstance(text, str) and text}


def family_of(settings: Spec) -> str:
  """Return the tokenizer's family, such as 'xlmroberta'; '' if not specified."""
  named = str(settings.get('tokenizer_class') or '').removesuffix('Fast').removesuffix('Tokenizer')
  named = '' if named in ('PreTrained', 'TokenizersBackend') else named
  return ''.join(letter for letter in named or str(settings.get('model_type') or '') if letter.isalnum()).lower()


def check_family(settings: Spec, supported: Collection[str], *, of: str) -> None:
  """Raise ValueError if the files belong to an unsupported tokenizer."""
  if (family := family_of(settings)) and family not in supported:
    named = next(settings[key] for key in ('tokenizer_class', 'model_type') if family_of({key: settings.get(key)}))
    raise ValueError(
      f'has {of} of {named}, which is not supported: write a tokenizer.json, by `AutoTokenizer.from_pretrained(FOLDER)'
      '.save_pretrained(FOLDER)`, or set "tokenizer_class" ("BertTokenizer") in tokenizer_config.json'
    )


def bert_normalizer(settings: Spec) -> dict[str, Any]:
  return {
    'type': 'BertNormalizer',
    'clean_text': True,
    'handle_chinese_chars': settings.get('tokenize_chinese_chars', True),
    'strip_accents': settings.get('strip_accents'),
    'lowercase': settings.get('do_lower_case', True),
  }
