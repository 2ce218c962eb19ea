"""Published tokenizers of every form, as the content of a `tokenizer.json` and the roles of their special tokens.

Older folders have no `tokenizer.json` but the files of their paper's code: `vocab.txt` (BERT), `vocab.json` and
`merges.txt` (GPT, GPT-2, RoBERTa, BART), a SentencePiece model (T5, ALBERT, XLNet, LLaMA, XLM-R, mBART, DeBERTa-v3), or
none at all (ByT5). Which tokenizer they belong to is said by `tokenizer_config.json` or by `config.json`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax.io import checksums, files
from plm_jax.text import spec as specs
from plm_jax.text import spm
from plm_jax.text.spec import Spec
from plm_jax.text.spm import Model, Piece

TOKENIZER, WORDS, IDS, MERGES = 'tokenizer.json', 'vocab.txt', 'vocab.json', 'merges.txt'
MODELS = ('sentencepiece.bpe.model', 'spiece.model', 'spm.model', 'tokenizer.model')
FAIRSEQ = MODELS[0]
SETTINGS = ('config.json', 'special_tokens_map.json', 'tokenizer_config.json')  # later ones overwrite
FLAGS = (  # of settings
  'do_lower_case', 'keep_accents', 'strip_accents', 'tokenize_chinese_chars', 'add_prefix_space', 'add_bos_token',
  'add_eos_token', 'split_by_punct',
)  # fmt: skip
# what transformers builds its tokenizer of, by the names of its classes and of the models that they belong to
BERTS = (
  'bert', 'distilbert', 'electra', 'ernie', 'layoutlm', 'lxmert', 'megatronbert', 'mobilebert', 'nezha', 'realm',
  'squeezebert', 'visualbert',
)  # fmt: skip
ROBERTAS = ('roberta', 'bart', 'longformer', 'led', 'data2vectext', 'ibert', 'robertaprelayernorm')
GPTS = ('gpt2', 'gptneo', 'gptj', 'opt', 'codegen')
WORD_LISTS = (*BERTS, 'convbert', 'dprcontextencoder', 'dprquestionencoder', 'dprreader')  # with a vocab.txt
MERGED = (*ROBERTAS, *GPTS, 'deberta', 'openaigpt', 'herbert')  # with a vocab.json and merges.txt
NO_CLASS = (  # model types whose folders have no class, whatever they name
  'gpt_bigcode', 'nystromformer', 'umt5', 'xlm-roberta-xl', 'bigbird_pegasus', 'pegasus_x', 'glm', 'glm4', 'mistral',
  'mixtral', 'ministral', 'olmo2', 'olmo3', 'granite', 'granitemoe', 'stablelm', 'persimmon', 'phi3', 'phimoe',
  'modernbert', 'modernbert-decoder', 'internlm2', 'internlm3', 'minicpm3', 'nemotron', 'jamba', 'arctic', 'ernie4_5',
)  # fmt: skip
AS_IT_IS = ('PreTrainedTokenizer', 'PreTrainedTokenizerFast', 'TokenizersBackend', 'PythonBackend')
NAMES = ('bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask')  # roles, in the order in which missing ones are added
LANGUAGES = (
  'ar_AR', 'cs_CZ', 'de_DE', 'en_XX', 'es_XX', 'et_EE', 'fi_FI', 'fr_XX', 'gu_IN', 'hi_IN', 'it_IT', 'ja_XX', 'kk_KZ',
  'ko_KR', 'lt_LT', 'lv_LV', 'my_MM', 'ne_NP', 'nl_XX', 'ro_RO', 'ru_RU', 'si_LK', 'tr_TR', 'vi_VN', 'zh_CN',
)  # fmt: skip
MORE_LANGUAGES = (
  'af_ZA', 'az_AZ', 'bn_IN', 'fa_IR', 'he_IL', 'hr_HR', 'id_ID', 'ka_GE', 'km_KH', 'mk_MK', 'ml_IN', 'mn_MN', 'mr_IN',
  'pl_PL', 'ps_AF', 'pt_XX', 'sv_SE', 'sw_KE', 'ta_IN', 'te_IN', 'th_TH', 'tl_XX', 'uk_UA', 'ur_PK', 'xh_ZA', 'gl_ES',
  'sl_SI',
)  # fmt: skip


class Published(NamedTuple):
  """A tokenizer: the content of its `tokenizer.json`, and role -> token as its other files name them."""

  spec: dict[str, Any]
  roles: dict[str, str]


class Form(NamedTuple):
  """What a family makes of a SentencePiece model.

  Attributes:
    model: with the pieces in the order of the ids of the family.
    row: how a text stands in a row, and how two do: 'cls A sep', 'cls A sep B:1 sep:1'; names that are no role are
      tokens.
    first: normalisers that come before those of the model.
  """

  model: Model
  row: tuple[str, str]
  first: Sequence[Spec] = ()


BERT = ('cls A sep', 'cls A sep B:1 sep:1')
ROBERTA = ('cls A sep', 'cls A sep sep B sep')
T5 = ('A eos', 'A eos B eos')
XLNET = ('A sep cls:2', 'A sep B:1 sep:1 cls:2')
LANGUAGE = 'en_XX'  # of the texts where the settings name none
LANGUAGE_ROWS: dict[str, Callable[[str], tuple[str, str]]] = {
  'mbart': lambda language: (f'A eos {language}', f'A B eos {language}'),
  'mbart50': lambda language: (f'{language} A eos', f'{language} A B eos'),
}


def find(path: Path) -> Path | None:
  """The file that decides in a folder, or the path itself where it is a file; None where there is no tokenizer."""
  if not files.is_folder(path):
    return path if files.is_file(path) else None
  for name in (TOKENIZER, *MODELS, MERGES, WORDS):
    if files.is_file(path / name) and (name != MERGES or files.is_file(path / IDS)):
      return path / name
  bare = files.is_file(path / SETTINGS[-1]) and _family(_settings(path)) == 'byt5'
  return path / SETTINGS[-1] if bare else None


def read(file: Path) -> Published:
  """The tokenizer of a file that `find` gives.

  Raises:
    ValueError: damaged, or of a kind that is not read here.
    RunError: the copy of an import, and changed since.
  """
  checksums.check_all(file.parent)
  if file.suffix == '.json' and file.name not in (IDS, SETTINGS[-1]):
    settings = _settings(file.parent)
    return Published(_as_loaded(as_saved(file), settings), _names(settings))
  settings = _settings(file.parent)
  if file.suffix == '.model':
    spec, row = _sentencepiece(file, settings)
  elif file.name in (IDS, MERGES):
    spec, row = _byte_bpe(file.parent, settings)
  elif file.name == SETTINGS[-1]:
    spec, row = _bytes(settings)
  else:
    spec, row = _wordpiece(file, settings)
  spec = _with_added(spec, file.parent, settings)
  roles = _roles(spec, settings)
  return Published(_with_row(spec, row, roles), roles)


def as_saved(file: Path) -> dict[str, Any]:
  """The content of a `tokenizer.json`, without what the settings beside it say."""
  return {'normalizer': None, 'pre_tokenizer': None, 'added_tokens': [], **read_table(file)}


def read_folder(path: Path) -> Published:
  """The tokenizer of a folder or file; raises a FileNotFoundError where there is none, and what `read` does."""
  file = find(path)
  if file is None:
    raise FileNotFoundError(f'there is no vocabulary in {path}')
  return read(file)


# Files -------------------------------------------------------------------------------------------------------------


def read_table(file: Path) -> dict[str, Any]:
  """The object in a JSON file; a ValueError where it is damaged, a RunError where it was changed after an import."""
  try:
    content = checksums.read_json(file)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'is damaged ({file.name}: {error})') from error
  if not isinstance(content, dict):
    raise ValueError(f'is damaged ({file.name} holds no table)')
  return content


def _text(file: Path) -> str:
  """The text of a file; a ValueError that names it where it is no UTF-8."""
  try:
    return files.read_text(file)
  except UnicodeDecodeError as error:
    raise ValueError(f'is damaged ({file.name} is no text in UTF-8: {error.reason} at byte {error.start})') from error


def _settings(folder: Path) -> dict[str, Any]:
  """What the files beside a tokenizer say of it, in one table."""
  found: dict[str, Any] = {}
  for name in SETTINGS:
    if files.is_file(folder / name):
      own = {key: value for key, value in read_table(folder / name).items() if value is not None}
      for key in FLAGS:
        if not isinstance(own.get(key, False), bool):
          raise ValueError(f'is damaged ({name}: {key} is {own[key]!r}, and must be true or false)')
      found |= own if name == SETTINGS[-1] else {key: value for key, value in own.items() if key not in FLAGS}
  return found


def _names(settings: Spec) -> dict[str, str]:
  """Role -> token, of those that the settings name."""
  given = {role: settings.get(f'{role}_token') for role in NAMES}
  texts = {role: value.get('content') if isinstance(value, Mapping) else value for role, value in given.items()}
  return {role: text for role, text in texts.items() if isinstance(text, str) and text}


def _family(settings: Spec) -> str:
  """The tokenizer that a folder belongs to, as 'xlmroberta'; '' where no file says so."""
  named = str(settings.get('tokenizer_class') or '').removesuffix('Fast').removesuffix('Tokenizer')
  named = '' if named in ('PreTrained', 'TokenizersBackend') else named
  return ''.join(letter for letter in named or str(settings.get('model_type') or '') if letter.isalnum()).lower()


# Settings beside a tokenizer.json ----------------------------------------------------------------------------------


def _as_loaded(spec: dict[str, Any], settings: Spec) -> dict[str, Any]:
  """A `tokenizer.json` as transformers loads it: classes of models build some parts of it by tokenizer_config.json.

  What the settings do not name has the default of the class. A folder whose class is that of no model has its
  `tokenizer.json` as it is.

  Raises:
    ValueError: it has another part in the place of one that is built, or does other than the settings say.
  """
  named, model_type = settings.get('tokenizer_class'), settings.get('model_type')
  if named in AS_IT_IS or (named and model_type in NO_CLASS):
    return spec
  family = _family(settings)
  if family in BERTS:
    return _with_part(spec, 'normalizer', _bert_normalizer(settings), named)
  if family in (*ROBERTAS, *GPTS, 'deberta', 'gptneox'):
    level = {'type': 'ByteLevel', 'add_prefix_space': settings.get('add_prefix_space', False)}
    return _with_part(spec, 'pre_tokenizer', level, named)
  if family in LANGUAGE_ROWS:
    language = settings.get('src_lang') or LANGUAGE
    if language not in specs.token_ids(spec):
      raise ValueError(f'has src_lang {language!r} ({SETTINGS[-1]}), which is no token of its {TOKENIZER}')
    return _with_row(spec, LANGUAGE_ROWS[family](language), _names(settings))
  _check_pieces(spec, settings, family)
  return spec


def _with_part(spec: dict[str, Any], name: str, part: Spec, named: str | None) -> dict[str, Any]:
  """The same with these settings of a normaliser or a pre-tokenizer; another kind stays where no class is named."""
  own = spec[name] if isinstance(spec[name], Mapping) else {}
  if own.get('type') == part['type']:
    return {**spec, name: {**own, **part}}
  if named:
    raise ValueError(
      f'has a {TOKENIZER} with the {name} {own.get("type")}, in whose place {named} has {part["type"]} '
      f'(transformers 5; version 4 keeps it): to have {TOKENIZER} as it is, write "tokenizer_class": '
      f'"PreTrainedTokenizerFast" into {SETTINGS[-1]}'
    )
  return spec


def _check_pieces(spec: Spec, settings: Spec, family: str) -> None:
  """Raises a ValueError where a `tokenizer.json` of pieces does other than the settings that are named beside it."""
  parts = list(_parts([spec['normalizer'], spec['pre_tokenizer']]))
  kinds = {part['type'] for part in parts}
  blanks = [part for part in parts if part['type'] == 'Metaspace']
  first = [part.get('prepend_scheme') != 'never' and part.get('add_prefix_space', True) for part in blanks]
  done = {
    'do_lower_case': (('albert', 'xlnet', 'debertav2'), 'Lowercase' in kinds),
    'keep_accents': (('albert',), 'StripAccents' not in kinds),
    'split_by_punct': (('debertav2',), 'Punctuation' in kinds),
    'add_prefix_space': (('llama', 'codellama', 'xlmroberta', 'camembert'), 'Prepend' in kinds or any(first)),
  }
  for flag, (families, there) in done.items():
    if family in families and settings.get(flag, there) != there and (blanks or 'Prepend' in kinds):
      raise ValueError(
        f'has {flag} {str(not there).lower()} in {SETTINGS[-1]}, and its {TOKENIZER} does otherwise: say '
        f'{str(there).lower()} there, or save the tokenizer again with transformers'
      )


def _parts(part: Any) -> Iterator[Spec]:
  """All parts of a normaliser or a pre-tokenizer, those inside others included."""
  if isinstance(part, Mapping) and isinstance(part.get('type'), str):
    yield part
  for inner in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
    yield from _parts(inner)


# SentencePiece -----------------------------------------------------------------------------------------------------


def _sentencepiece(file: Path, settings: Spec) -> tuple[dict[str, Any], tuple[str, str] | None]:
  if files.size(file) > spm.MAX_BYTES:
    raise ValueError(f'is damaged: {file.name} has {files.size(file)} bytes, more than any SentencePiece model')
  try:
    model = spm.read(files.read_bytes(file))
  except ValueError as error:
    raise ValueError(f'{error} ({file.name})') from error
  family = _family(settings) or _guess(file, model)
  if family in FAMILIES:
    model, row, first = FAMILIES[family](model, settings)
    return spm.spec(model, first=first), row
  if file.name == FAIRSEQ:
    raise ValueError(
      f'holds {file.name}, whose ids depend on the model that it belongs to: put its config.json or '
      'tokenizer_config.json beside it'
    )
  return spm.spec(model), None


def _guess(file: Path, model: Model) -> str:
  """The family by the names of its pieces, for a model file that stands alone."""
  if file.name == FAIRSEQ:
    return ''
  texts = [piece.text for piece in model.pieces[:16]]
  if texts[:3] == ['<pad>', '</s>', '<unk>']:
    return 't5'
  if '[CLS]' in texts:
    return 'debertav2' if '[UNK]' in texts else 'albert'
  return 'xlnet' if '<cls>' in texts else 'llama' if texts[:3] == ['<unk>', '<s>', '</s>'] else ''


def _t5(model: Model, settings: Spec) -> Form:
  """Sentinels follow, the first one last; the models of mT5 have them."""
  own = any('<extra_id_0>' in piece.text for piece in model.pieces)
  count = 0 if own else settings.get('extra_ids', 100)
  sentinels = [Piece(f'<extra_id_{number}>', 0.0) for number in reversed(range(count))]
  return Form(model._replace(pieces=(*model.pieces, *sentinels)), T5)


def _albert(model: Model, settings: Spec, *, lowercase: bool = True) -> Form:
  """Quotation marks, accents and case go first; a comma after a digit is a piece of its own."""

  def cut(piece: Piece) -> Piece:
    joined = len(piece.text) > 1 and piece.text[-1] == ',' and piece.text[-2].isdigit()
    return piece._replace(score=piece.score - spm.NEVER) if joined else piece

  marks = [{'type': 'Replace', 'pattern': {'String': old}, 'content': '"'} for old in ('``', "''")]
  accents = [] if settings.get('keep_accents') else [{'type': 'NFKD'}, {'type': 'StripAccents'}]
  case = [{'type': 'Lowercase'}] if settings.get('do_lower_case', lowercase) else []
  return Form(model._replace(pieces=tuple(map(cut, model.pieces))), BERT, [*marks, *accents, *case])


def _xlnet(model: Model, settings: Spec) -> Form:
  return _albert(model, settings, lowercase=False)._replace(row=XLNET)


def _llama(model: Model, settings: Spec) -> Form:
  begin = 'bos ' if settings.get('add_bos_token', True) else ''
  end = ' eos' if settings.get('add_eos_token', False) else ''
  return Form(model, (f'{begin}A{end}', f'{begin}A{end} {begin}B{end}'))


def _deberta(model: Model, settings: Spec) -> Form:
  case = [{'type': 'Lowercase'}] if settings.get('do_lower_case') else []
  if settings.get('split_by_punct'):
    raise ValueError('splits words at punctuation (split_by_punct), which is not read here')
  mask = [] if any(piece.text == '[MASK]' for piece in model.pieces) else [Piece('[MASK]', 0.0)]
  return Form(model._replace(pieces=(*model.pieces, *mask)), BERT, case)


def _fairseq(model: Model, *last: str) -> Model:
  """fairseq's ids: <s>, <pad>, </s> and <unk> first, then what the model has after its own three."""
  front = [Piece('<s>', 0.0), Piece('<pad>', 0.0), Piece('</s>', 0.0), Piece('<unk>', 0.0, spm.UNKNOWN)]
  end = [Piece(name, 0.0) for name in last]
  return model._replace(pieces=(*front, *model.pieces[3:], *end), unk_id=3)


def _xlm_roberta(model: Model, settings: Spec) -> Form:
  del settings
  return Form(_fairseq(model, '<mask>'), ROBERTA)


def _camembert(model: Model, settings: Spec) -> Form:
  """Its dictionary repeats the model's: the names that come first are not used."""
  del settings
  front = [Piece('<s>NOTUSED', 0.0), Piece('<pad>', 0.0), Piece('</s>NOTUSED', 0.0)]
  front += [Piece('<unk>', 0.0, spm.UNKNOWN), Piece('<unk>NOTUSED', 0.0)]
  return Form(model._replace(pieces=(*front, *model.pieces[1:], Piece('<mask>', 0.0)), unk_id=3), ROBERTA)


def _mbart(model: Model, settings: Spec) -> Form:
  row = LANGUAGE_ROWS['mbart'](settings.get('src_lang') or LANGUAGE)
  return Form(_fairseq(model, *LANGUAGES, '<mask>'), row)


def _mbart50(model: Model, settings: Spec) -> Form:
  row = LANGUAGE_ROWS['mbart50'](settings.get('src_lang') or LANGUAGE)
  return Form(_fairseq(model, *LANGUAGES, *MORE_LANGUAGES, '<mask>'), row)


FAMILIES: dict[str, Callable[[Model, Spec], Form]] = {
  't5': _t5,
  'mt5': _t5,
  'umt5': _t5,
  'albert': _albert,
  'xlnet': _xlnet,
  'llama': _llama,
  'codellama': _llama,
  'debertav2': _deberta,
  'xlmroberta': _xlm_roberta,
  'camembert': _camembert,
  'mbart': _mbart,
  'mbart50': _mbart50,
}


# WordPiece, BPE and bytes --------------------------------------------------------------------------------------------


def _wordpiece(file: Path, settings: Spec) -> tuple[dict[str, Any], tuple[str, str]]:
  """BERT's; of a token that stands on several lines the last one counts, and the others are never chosen."""
  if files.is_file(file.parent / 'bpe.codes'):
    raise ValueError('holds a vocab.txt with bpe.codes, a tokenizer of fastBPE, which is not read here')
  _check_family(settings, WORD_LISTS, of=WORDS)
  lines = _text(file).removesuffix('\n').split('\n')
  lines = [line.removesuffix('\r') for line in lines]
  last = {token: number for number, token in enumerate(lines)}
  vocab = {token if last[token] == number else f'{token} \x00{number}': number for number, token in enumerate(lines)}
  unknown = _names(settings).get('unk', '[UNK]')
  if unknown not in vocab:
    raise ValueError(f'is damaged: {file.name} has no {unknown}')
  whole = [token for token in settings.get('never_split') or () if isinstance(token, str) and token in vocab]
  flags = {'single_word': True, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': False}
  return {
    'version': '1.0',
    'added_tokens': [{'id': vocab[token], 'content': token, **flags} for token in whole],
    'normalizer': _bert_normalizer(settings),
    'pre_tokenizer': {'type': 'BertPreTokenizer'},
    'decoder': {'type': 'WordPiece', 'prefix': '##', 'cleanup': True},
    'model': {
      'type': 'WordPiece',
      'unk_token': unknown,
      'continuing_subword_prefix': '##',
      'max_input_chars_per_word': 100,
      'vocab': vocab,
    },
  }, BERT


def _check_family(settings: Spec, known: Collection[str], *, of: str) -> None:
  """Raises a ValueError where a folder belongs to a tokenizer that reads its files otherwise than those of `known`."""
  if (family := _family(settings)) and family not in known:
    named = next(settings[key] for key in ('tokenizer_class', 'model_type') if _family({key: settings.get(key)}))
    raise ValueError(
      f'holds {of} of {named}, which is not read from that; save it with a tokenizer.json, as '
      'AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) does of many. Where it is the file of another '
      f'tokenizer, name that in tokenizer_config.json ("tokenizer_class": "BertTokenizer"); known: {", ".join(known)}'
    )


def _bert_normalizer(settings: Spec) -> dict[str, Any]:
  return {
    'type': 'BertNormalizer',
    'clean_text': True,
    'handle_chinese_chars': settings.get('tokenize_chinese_chars', True),
    'strip_accents': settings.get('strip_accents'),
    'lowercase': settings.get('do_lower_case', True),
  }


def _byte_bpe(folder: Path, settings: Spec) -> tuple[dict[str, Any], tuple[str, str] | None]:
  """Byte-level BPE, or that of the first GPT and HerBERT, whose merges end words with </w>."""
  _check_family(settings, MERGED, of=f'{IDS} and {MERGES}')
  family = _family(settings)
  vocab = read_table(folder / IDS)
  if not all(isinstance(number, int) for number in vocab.values()):
    raise ValueError(f'is damaged ({IDS} is no table of ids)')
  lines = [line.removesuffix('\r') for line in _text(folder / MERGES).split('\n') if line.strip()]
  merges = [line.split(' ') for line in lines if not line.startswith('#version')]
  for pair in merges:
    if len(pair) != 2 or not {*pair, ''.join(pair)} <= vocab.keys():
      raise ValueError(f'is damaged ({MERGES}: {" ".join(pair)!r} does not merge two tokens of {IDS})')
  ended = family in ('openaigpt', 'herbert') if family else any(pair[1].endswith('</w>') for pair in merges)
  unknown = _names(settings).get('unk', '<unk>')
  prefix = settings.get('add_prefix_space', False)
  parts: dict[str, Any] = {
    'normalizer': None,
    'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': prefix, 'trim_offsets': True, 'use_regex': True},
    'decoder': {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True, 'use_regex': True},
  }
  if ended:
    cased = {'do_lower_case': False, 'strip_accents': False}
    parts = {
      'normalizer': _bert_normalizer(cased if family == 'herbert' else {}),
      'pre_tokenizer': {'type': 'BertPreTokenizer'},
      'decoder': {'type': 'BPEDecoder', 'suffix': '</w>'},
    }
  model = {
    'type': 'BPE',
    'dropout': None,
    'unk_token': unknown if ended and unknown in vocab else None,
    'continuing_subword_prefix': '',
    'end_of_word_suffix': '</w>' if ended else '',
    'fuse_unk': False,
    'byte_fallback': False,
    'ignore_merges': False,
    'vocab': vocab,
    'merges': merges,
  }
  row = _row_of_merges(family, vocab, settings)
  return {'version': '1.0', 'added_tokens': [], **parts, 'model': model}, row


def _row_of_merges(family: str, vocab: Spec, settings: Spec) -> tuple[str, str] | None:
  """How a text stands in a row of such a vocabulary: by its family, and where none is named by its special tokens."""
  if not family and ('[CLS]' in vocab or settings.get('cls_token') == '[CLS]'):
    family = 'deberta'
  elif not family and {'<s>', '</s>'} <= vocab.keys():
    family = 'roberta'
  if family in ('deberta', 'herbert'):
    return BERT
  if family in ROBERTAS:
    return ROBERTA
  begin = 'bos' if settings.get('add_bos_token') else ''
  end = 'eos' if settings.get('add_eos_token') else ''
  if family == 'openaigpt' or not begin + end:
    return None
  one, two = f'{begin} A {end}', ' '.join(f'{part}:1' for part in (begin, 'B', end) if part)
  return one, f'{one} {two}'


def _bytes(settings: Spec) -> tuple[dict[str, Any], tuple[str, str]]:
  """ByT5: a token for every byte, after three special ones."""
  names = ['<pad>', '</s>', '<unk>', *specs.ALPHABET]
  sentinels = [f'<extra_id_{number}>' for number in range(settings.get('extra_ids', 125))]
  vocab = {token: number for number, token in enumerate((*names, *sentinels))}
  special = {token: vocab[token] for token in (*names[:3], *sentinels)}
  level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': False}
  return {
    'version': '1.0',
    'added_tokens': specs.added_tokens(special, kind='byte_bpe', mask=None),
    'normalizer': None,
    'pre_tokenizer': level,
    'decoder': level,
    'model': {'type': 'BPE', 'vocab': vocab, 'merges': []},
  }, T5


# Special tokens ----------------------------------------------------------------------------------------------------


def _with_added(spec: dict[str, Any], folder: Path, settings: Spec) -> dict[str, Any]:
  """The same with the tokens that other files add: each has the id that it is given there or the next one.

  Raises:
    ValueError: an id belongs to another token, or leaves a hole behind all others.
  """
  found: dict[str, dict[str, Any]] = {}
  numbers: dict[str, Any] = {}
  place, listed = 'added_tokens_decoder', settings.get('added_tokens_decoder')
  if isinstance(listed, Mapping):
    items = [(number, item) for number, item in listed.items() if isinstance(item, Mapping)]
    found = {item['content']: dict(item) for _, item in items if isinstance(item.get('content'), str)}
    numbers = {item['content']: number for number, item in items if item.get('content') in found}
  if not found and files.is_file(folder / 'added_tokens.json'):
    place, numbers = 'added_tokens.json', read_table(folder / 'added_tokens.json')
    found = {token: {} for token in numbers}
  if odd := [number for number in numbers.values() if not str(number).isdecimal()]:
    raise ValueError(f'is damaged ({place} has {odd[0]!r} in place of an id)')
  found = {token: found[token] for token in sorted(found, key=lambda token: int(numbers[token]))}
  names = [settings.get(f'{role}_token') for role in NAMES]
  others = [
    *(settings.get('additional_special_tokens') or ()),
    *(listed if isinstance(listed := settings.get('extra_special_tokens') or (), list) else ()),
  ]
  for item in (*names, *others):
    own = dict(item) if isinstance(item, Mapping) else {'content': item}
    if isinstance(own.get('content'), str) and own['content']:
      found[own['content']] = {**found.get(own['content'], {}), **own, 'special': True}
  whole = _append(spec, found, mask=_names(settings).get('mask'))
  ids = specs.token_ids(whole)
  for token, number in numbers.items():
    if ids[token] != int(number):
      raise ValueError(
        f'is damaged ({place} says that the id of {token!r} is {number}, and by the other files it is {ids[token]})'
      )
  return whole


def _append(spec: dict[str, Any], found: Mapping[str, Spec], *, mask: str | None) -> dict[str, Any]:
  """A specification with these added tokens, which follow all others where they are new."""
  ids, kind = specs.token_ids(spec), specs.kind_of(spec)
  ids |= {token: len(ids) + number for number, token in enumerate(token for token in found if token not in ids)}
  marked = {item['content']: item for item in spec['added_tokens']}
  for token, own in found.items():
    (usual,) = specs.added_tokens({token: ids[token]}, kind=kind, mask=mask)
    flags = {key: own[key] for key in ('single_word', 'lstrip', 'rstrip', 'normalized', 'special') if key in own}
    special = {'special': False} if not own.get('special', False) else {}
    marked[token] = {**usual, **special, **flags, 'id': ids[token]}
  return {**spec, 'added_tokens': sorted(marked.values(), key=lambda item: item['id'])}


def _roles(spec: Spec, settings: Spec) -> dict[str, str]:
  """Role -> token: as the settings say, and to pad with the unknown token where there is nothing else (GPT)."""
  named = _names(settings)
  if specs.kind_of(spec) == 'word_bpe' and (unknown := spec['model']['unk_token']):
    padding = {} if set(specs.ROLES['pad']) & specs.token_ids(spec).keys() else {'pad': unknown}
    named = {'unk': unknown, **padding, **named}
  return named


def _with_row(spec: dict[str, Any], row: tuple[str, str] | None, roles: Mapping[str, str]) -> dict[str, Any]:
  """The same with the special tokens of a row, where the vocabulary has them."""
  if row is None:
    return spec
  ids = specs.token_ids(spec)
  known = dict(specs.guess_roles(ids, decided=roles)) | dict(roles)
  for role, other in specs.STAND_INS:
    if role not in known and other in known:
      known[role] = known[other]

  def parts(form: str) -> list[tuple[int | str, int]]:
    split = [(name, int(number or 0)) for name, _, number in (part.partition(':') for part in form.split())]
    return [(name if name in ('A', 'B') else ids[known.get(name, name)], number) for name, number in split]

  try:
    single, pair = map(parts, row)
  except KeyError:  # a vocabulary without one of them
    return spec
  return specs.with_template(spec, single, pair)
