"""Published SentencePiece models, with the ids and special tokens that each family adds."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax.io import files
from plm_jax.text import spm
from plm_jax.text.published_files import FAIRSEQ, family_of
from plm_jax.text.published_rows import BERT, LANGUAGE, LANGUAGE_ROWS, ROBERTA, T5, XLNET
from plm_jax.text.spec import Spec
from plm_jax.text.spm import Model, Piece

LANGUAGES = (
  'ar_AR', 'cs_CZ', 'de_DE', 'en_XX', 'es_XX', 'et_EE', 'fi_FI', 'fr_XX', 'gu_IN', 'hi_IN', 'it_IT', 'ja_XX', 'kk_KZ',
  'ko_KR', 'lt_LT', 'lv_LV', 'my_MM', 'ne_NP', 'nl_XX', 'ro_RO', 'ru_RU', 'si_LK', 'tr_TR', 'vi_VN', 'zh_CN',
)  # fmt: skip
MORE_LANGUAGES = (
  'af_ZA', 'az_AZ', 'bn_IN', 'fa_IR', 'he_IL', 'hr_HR', 'id_ID', 'ka_GE', 'km_KH', 'mk_MK', 'ml_IN', 'mn_MN', 'mr_IN',
  'pl_PL', 'ps_AF', 'pt_XX', 'sv_SE', 'sw_KE', 'ta_IN', 'te_IN', 'th_TH', 'tl_XX', 'uk_UA', 'ur_PK', 'xh_ZA', 'gl_ES',
  'sl_SI',
)  # fmt: skip


class Form(NamedTuple):
  """A SentencePiece model as a family uses it."""

  model: Model  # with the pieces in the order of the ids of the family
  row: tuple[str, str]  # special tokens around a text, and around two (`published_rows`)
  first: Sequence[Spec] = ()  # normalisers that come before those of the model


def sentencepiece(file: Path, settings: Spec) -> tuple[dict[str, Any], tuple[str, str] | None]:
  """Read a SentencePiece model as its family does."""
  if files.size(file) > spm.MAX_BYTES:
    raise ValueError(f'is damaged: {file.name} has {files.size(file)} bytes, too many for a SentencePiece model')
  try:
    model = spm.read(files.read_bytes(file))
  except ValueError as error:
    raise ValueError(f'{error} ({file.name})') from error
  family = family_of(settings) or _guess(file, model)
  if family in FAMILIES:
    model, row, first = FAMILIES[family](model, settings)
    return spm.spec(model, first=first), row
  if file.name == FAIRSEQ:
    raise ValueError(
      f'has {file.name}, whose ids depend on its model: add its config.json or tokenizer_config.json to the folder'
    )
  return spm.spec(model), None


def _guess(file: Path, model: Model) -> str:
  """Guess the family of a single model file by its pieces."""
  if file.name == FAIRSEQ:
    return ''
  texts = [piece.text for piece in model.pieces[:16]]
  if texts[:3] == ['<pad>', '</s>', '<unk>']:
    return 't5'
  if '[CLS]' in texts:
    return 'debertav2' if '[UNK]' in texts else 'albert'
  return 'xlnet' if '<cls>' in texts else 'llama' if texts[:3] == ['<unk>', '<s>', '</s>'] else ''


def _t5(model: Model, settings: Spec) -> Form:
  """Append the sentinels, last first, unless mT5 has them."""
  has_sentinels = any('<extra_id_0>' in piece.text for piece in model.pieces)
  count = 0 if has_sentinels else settings.get('extra_ids', 100)
  sentinels = [Piece(f'<extra_id_{index}>', 0.0) for index in reversed(range(count))]
  return Form(model._replace(pieces=(*model.pieces, *sentinels)), T5)


def _albert(model: Model, settings: Spec, *, lowercase: bool = True) -> Form:
  """Normalise quotation marks, accents and case; split commas after digits."""

  def cut(piece: Piece) -> Piece:
    joined = len(piece.text) > 1 and piece.text[-1] == ',' and piece.text[-2].isdigit()
    return piece._replace(score=piece.score - spm.NEVER) if joined else piece

  marks = [{'type': 'Replace', 'pattern': {'String': old}, 'content': '"'} for old in ('``', "''")]
  accents = [] if settings.get('keep_accents') else [{'type': 'NFKD'}, {'type': 'StripAccents'}]
  case = [{'type': 'Lowercase'}] if settings.get('do_lower_case', lowercase) else []
  return Form(model._replace(pieces=tuple(map(cut, model.pieces))), BERT, [*marks, *accents, *case])


def _llama(model: Model, settings: Spec) -> Form:
  begin = 'bos ' if settings.get('add_bos_token', True) else ''
  end = ' eos' if settings.get('add_eos_token', False) else ''
  return Form(model, (f'{begin}A{end}', f'{begin}A{end} {begin}B{end}'))


def _deberta(model: Model, settings: Spec) -> Form:
  case = [{'type': 'Lowercase'}] if settings.get('do_lower_case') else []
  if settings.get('split_by_punct'):
    raise ValueError('has split_by_punct, which is not supported: set it to false')
  mask = [] if any(piece.text == '[MASK]' for piece in model.pieces) else [Piece('[MASK]', 0.0)]
  return Form(model._replace(pieces=(*model.pieces, *mask)), BERT, case)


def _fairseq(model: Model, *last: str) -> Model:
  """Reorder the ids as fairseq: four special tokens, then the other pieces."""
  front = [Piece('<s>', 0.0), Piece('<pad>', 0.0), Piece('</s>', 0.0), Piece('<unk>', 0.0, spm.UNKNOWN)]
  end = [Piece(name, 0.0) for name in last]
  return model._replace(pieces=(*front, *model.pieces[3:], *end), unk_id=3)


def _camembert(model: Model, settings: Spec) -> Form:
  """Use Camembert's ids, whose dictionary repeats the model's first names."""
  front = [Piece('<s>NOTUSED', 0.0), Piece('<pad>', 0.0), Piece('</s>NOTUSED', 0.0)]
  front += [Piece('<unk>', 0.0, spm.UNKNOWN), Piece('<unk>NOTUSED', 0.0)]
  return Form(model._replace(pieces=(*front, *model.pieces[1:], Piece('<mask>', 0.0)), unk_id=3), ROBERTA)


def _mbart(family: str, languages: Sequence[str], model: Model, settings: Spec) -> Form:
  return Form(_fairseq(model, *languages, '<mask>'), LANGUAGE_ROWS[family](settings.get('src_lang') or LANGUAGE))


FAMILIES: dict[str, Callable[[Model, Spec], Form]] = {
  't5': _t5, 'mt5': _t5, 'umt5': _t5, 'albert': _albert, 'llama': _llama, 'codellama': _llama,
  'debertav2': _deberta, 'camembert': _camembert,
  'xlnet': lambda model, settings: _albert(model, settings, lowercase=False)._replace(row=XLNET),
  'xlmroberta': lambda model, settings: Form(_fairseq(model, '<mask>'), ROBERTA),
  'mbart': partial(_mbart, 'mbart', LANGUAGES), 'mbart50': partial(_mbart, 'mbart50', LANGUAGES + MORE_LANGUAGES),
}  # fmt: skip
