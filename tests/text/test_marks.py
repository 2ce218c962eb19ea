"""SentencePiece models read text with combining marks as their library does, in every normal form and in none."""

import json
import unicodedata

import pytest

from plm_jax.text import spec as specs
from plm_jax.text import tokenizer
from tests.text.test_published import train, write

sentencepiece = pytest.importorskip('sentencepiece')

LANGUAGES = (
  'Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. Cửa hàng ở Huế.',
  '모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.',
  'すべての人間は、生まれながらにして自由であり、ガギグゲゴ パピプペポ ﾊﾟﾋﾟ ｶﾞｷﾞ ～ ヴ',
  'सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता क़लम ज़रूर फ़िल्म',
  'มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน น้ำ กำลัง',
  'Όλοι οι άνθρωποι γεννιούνται ελεύθεροι. Ἐν ἀρχῇ ἦν ὁ λόγος ᾷ ΐ',
  'Все люди рождаются свободными. Ёлка, йод, её.',
  'Всі люди народжуються вільними. Їжак, ґанок, ЇЙ',
  'Alle Menschen sind frei geboren. Größe Übung ÄÖÜ ß',
  'Tous les êtres humains naissent libres. Œuvre garçon À Ça',
  'Todos los seres humanos nacen libres. El Niño ¿Qué?',
  'Todos os seres humanos nascem livres. Ações não',
  'Bütün insanlar hür doğar. İstanbul ığdır ĞÜŞ',
  'Wszyscy ludzie rodzą się wolni. Żółć źdźbło Ś',
  'Všichni lidé se rodí svobodní. Příliš žluťoučký kůň ĎŤ',
  'Minden emberi lény szabadon születik. Őrült tűz',
  'يولد جميع الناس أحرارًا متساوين. إِنَّ الْإِنْسَانَ آمن لا ﻻ',
  'כָּל בְּנֵי אָדָם נוֹלְדוּ בְּנֵי חוֹרִין. שׁלום שׂרה',
  'সমস্ত মানুষ স্বাধীনভাবে জন্মগ্রহণ করে। বড়ো ঢেউ য়',
  'மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே கொடுத்து கௌரவம்',
  'تمام افراد بشر آزاد به دنیا می\u200cآیند و کتاب\u200cها',
  '人人生而自由，在尊严和权利上一律平等。ＡＢＣ ①',
  'Gbogbo ènìyàn ni a bí ní òmìnira; iyì àti ẹ̀tọ́ kọ̀ọ̀kan',
  'Visi žmonės gimsta laisvi. ė̃ į́ ū̃',
  'လူတိုင်းသည် တူညီ လွတ်လပ်သော',
)
ODD = (  # letters with several marks, marks in another order or on letters that have one, letters of several parts
  'q̣̇ Q̣ ﬁ ½ Ⅳ Å é́ \u200b a\r\nb 👨\u200d👩\u200d👧 ẹ́ ǅ',
  '\xea\u0323 \u01b0\u0309 e\u0302\u0323 s\u0307\u0323 \ufb01\u0301 o\u0304\u0328 \u014d\u0328 \uac00\u11a8 \u01d6 \u1eef \u1ed3',  # noqa: E501
  '\u01d7 \u0130I i\u0307 \xf1\u0303 \xc5 \u03a9 \u0149 \u1e9e \ufb00 \uff21\uff22\xb2 \u32ff \u3231 \uff80\uff9e\uff8e\uff9f \u30ab\u309b',  # noqa: E501
)
FORMS = ('NFC', 'NFD', 'NFKC', 'NFKD', None)


@pytest.mark.parametrize('algorithm', ['unigram', 'bpe'])
@pytest.mark.parametrize('rule', ['nmt_nfkc', 'nmt_nfkc_cf', 'nfkc', 'nfkc_cf', 'identity'])
@pytest.mark.parametrize('byte_fallback', [False, True])
def test_marks_are_read_as_by_the_library(tmp_path, algorithm, rule, byte_fallback):
  content = train(
    [*LANGUAGES, *ODD] * 15, size=1300 if byte_fallback else 900, algorithm=algorithm, normalization_rule_name=rule,
    byte_fallback=byte_fallback, character_coverage=1.0, remove_extra_whitespaces=not byte_fallback,
    pad_id=3,
  )  # fmt: skip
  vocab = tokenizer.load(write(tmp_path, {'spiece.model': content}))
  library = sentencepiece.SentencePieceProcessor(model_proto=content)
  texts = [unicodedata.normalize(form, text) if form else text for text in (*LANGUAGES, *ODD) for form in FORMS]
  for text in texts:
    assert vocab.encode(text) == library.encode(text), ascii(text)


def test_an_older_copy_of_a_vocabulary_is_the_same(tmp_path):
  content = train([*LANGUAGES, *ODD] * 15, size=900, pad_id=3)
  vocab = tokenizer.load(write(tmp_path, {'spiece.model': content}))
  spec = json.loads(vocab.content)
  older = tokenizer.assemble(specs.without_joined_marks(spec), roles=vocab.roles)
  kinds = [part['type'] for part in json.loads(older.content)['normalizer']['normalizers']]
  assert kinds[0] == 'Precompiled' and 'NFC' not in kinds and older.digest != vocab.digest
  assert tokenizer.same(vocab, older) and not tokenizer.same(older, vocab)
  assert tokenizer.check_compatible(vocab, older) == ()
