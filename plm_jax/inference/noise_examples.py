"""The pre-training objectives that `plm-jax noise` shows, each with its config and a one-line description."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from plm_jax.inference.noise_page import Rows


class Show(NamedTuple):
  """One objective."""

  name: str  # value of `--objective`
  what: str  # the paper and the idea, in one line
  model: str  # a file of `models/` that it accepts
  objective: Mapping[str, Any]  # a file of `objectives/` and its keywords
  config: str = ''  # the file of `experiments/` that trains it, with its argument; '' without one
  rows: Rows = 'text'  # as `kind` of `noise_page.batch`
  labels: str = ''  # the meaning of each label; '' without labels


def _bart(**settings: Any) -> dict[str, Any]:
  return dict(name='denoise_seq2seq', start='eos', append_eos=False, **{'target': 'text', **settings})


def _t5(**settings: Any) -> dict[str, Any]:
  return dict(name='denoise_seq2seq', **settings)


_BERT_STYLE = dict(name='bert_80_10_10', mask=0.9, random=0.1)
_INFILL = dict(where=dict(name='poisson_spans', rate=0.3, mean=3.0), edit=dict(name='collapse_to_mask'))
_NOTHING = dict(where=dict(name='iid', rate=0.0), edit=dict(name='drop'))
_COMPARISON = 'bart/comparison.py'
_T5 = 't5/pretrain.py'

GALLERY = (
  Show('skipgram', 'word2vec: predict a word from each word around it, against sampled words', 'static',
       dict(name='skipgram', subsample=0.01), 'word2vec/skipgram.py', 'plain'),
  Show('cbow', 'word2vec: predict a word from the mean of the words around it', 'static',
       dict(name='skipgram', architecture='cbow', subsample=0.01), 'word2vec/skipgram.py:cbow', 'plain'),
  Show('glove', 'GloVe: the logarithm of the count of each pair of words', 'static', dict(name='glove'),
       'glove/glove.py', 'counts'),
  Show('elmo', 'ELMo: predict the next word in both directions', 'elmo', dict(name='bidirectional_lm'),
       'elmo/pretrain.py', 'directions'),
  Show('causal_lm', 'GPT: predict each token from those before it', 'gpt', dict(name='causal_lm'), 'gpt/gpt.py',
       'plain'),
  Show('bert', 'BERT: 15 % of the tokens: 80 % masked, 10 % random, 10 % unchanged', 'bert', dict(name='mlm'),
       'bert/base.py:mlm'),
  Show('whole_word', 'BERT 2019: whole-word masking', 'bert', dict(name='mlm', where=dict(name='whole_word'))),
  Show('roberta', 'RoBERTa: sampled at every step, the count rounded at random', 'bert',
       dict(name='mlm', where=dict(name='fixed_count', count='roberta', candidates='all'),
            edit=dict(name='bert_80_10_10', random_ids='ordinary')), 'roberta/pretrain.py'),
  Show('albert', 'ALBERT: n-grams of one to three words', 'bert', dict(name='mlm', where=dict(name='ngram')),
       'albert/pretrain.py:mlm'),
  Show('deberta', 'DeBERTa: one n-gram per window; positions enter in the decoder', 'deberta',
       dict(name='emd_mlm', where=dict(name='ngram_windows')), 'deberta/base.py'),
  Show('gpt_bert', 'GPT-BERT: masked rows and rows from left to right, each token read before it', 'gpt_bert',
       dict(name='gpt_bert', causal=0.0625, where=dict(name='ngram', rate=0.15, max_words=3)), 'gpt_bert/pretrain.py'),
  Show('spanbert', 'SpanBERT: spans of geometric length, predicted from their boundary too', 'bert',
       dict(name='span_boundary'), 'spanbert/pretrain.py'),
  Show('nsp', 'BERT: does the second part follow the first?', 'bert',
       dict(name='sentence_pair', question='nsp'), 'bert/base.py', 'pair',
       '0: the second part follows the first; 1: it is from another document'),
  Show('sop', 'ALBERT: are the two parts in order (0) or swapped (1)?', 'bert',
       dict(name='sentence_pair', question='sop', where=dict(name='ngram')), 'albert/pretrain.py', 'pair',
       '0: in order; 1: swapped'),
  Show('electra', 'ELECTRA: a generator fills the masks, the discriminator finds replaced tokens', 'bert',
       dict(name='rtd', generator=dict(name='bert', variant='tiny')), 'electra/base.py',
       labels='1: replaced, 0: original. This generator fills by word frequency; a trained one fills words that fit'),
  Show('xlnet', 'XLNet: predict one token in six, in random order of all tokens', 'xlnet', dict(name='permutation_lm'),
       'xlnet/base.py'),
  Show('glm', 'GLM: spans in random order, filled left to right, two positions per token', 'glm',
       dict(name='blank_infilling'), 'glm/base.py'),
  Show('glm_sentence', 'GLM: whole sentences as spans', 'glm',
       dict(name='blank_infilling', levels=dict(sentence=1.0), ratio=0.25, block=0.1, short=0.02), 'glm/10b.py'),
  Show('glm_document', 'GLM: one long span', 'glm',
       dict(name='blank_infilling', levels=dict(document=1.0), ratio=0.25, block=0.1, short=0.02), 'glm/10b.py'),
  Show('unilm', 'UniLM: one attention mask per row: bidirectional, left, right, or prefix', 'bert', dict(name='unilm'),
       f'{_COMPARISON}:multitask'),
  Show('permuted_lm', "BART's comparison: XLNet's objective on one stream with copies of the targets", 'bert',
       dict(name='permuted_lm'), f'{_COMPARISON}:permuted_lm'),
  Show('mass_span', 'MASS: one span of half the text, predicted by the decoder', 'bart',
       _bart(where=dict(name='one_span', rate=0.5), edit=dict(name='to_mask'), target='chosen'),
       f'{_COMPARISON}:masked_seq2seq'),
  Show('bart_mask', 'BART: token masking, one mask per word', 'bart',
       _bart(where=dict(name='exact_units', rate=0.15), edit=dict(name='collapse_to_mask')), f'{_COMPARISON}:masking'),
  Show('bart_delete', 'BART: token deletion', 'bart',
       _bart(where=dict(name='exact_units', rate=0.15), edit=dict(name='drop')), f'{_COMPARISON}:deletion'),
  Show('bart_infill', 'BART: spans of Poisson length, one mask per span, also for empty spans', 'bart',
       _bart(**_INFILL), f'{_COMPARISON}:infilling'),
  Show('bart_permute', 'BART: sentences in random order', 'bart',
       _bart(rearrange=(dict(name='permute_sentences'),), **_NOTHING), f'{_COMPARISON}:shuffling'),
  Show('bart_rotate', 'BART: the document begins at a random token', 'bart',
       _bart(finish=(dict(name='rotate'),), **_NOTHING), f'{_COMPARISON}:rotation'),
  Show('bart', 'BART: infilling and permuted sentences, its final mix', 'bart',
       _bart(rearrange=(dict(name='permute_sentences'),), **_INFILL), 'bart/large.py'),
  Show('t5', 'T5: spans become sentinels, the target is the content of the spans', 't5', _t5(), _T5, 'plain'),
  Show('t5_prefix', 'T5: prefix language modelling', 't5',
       _t5(where=dict(name='prefix'), edit=dict(name='drop'), target='chosen'), f'{_T5}:prefix_lm', 'plain'),
  Show('t5_bert', 'T5: BERT-style, the whole text as target', 't5',
       _t5(where=dict(name='iid'), edit=_BERT_STYLE, target='text'), f'{_T5}:bert', 'plain'),
  Show('mass', 'T5: MASS-style, masks only', 't5',
       _t5(where=dict(name='iid'), edit=dict(name='to_mask'), target='text'), f'{_T5}:mass', 'plain'),
  Show('t5_drop', 'T5: dropped tokens', 't5',
       _t5(where=dict(name='iid'), edit=dict(name='drop'), target='chosen'), f'{_T5}:drop', 'plain'),
  Show('deshuffle', 'T5: all tokens in random order', 't5',
       _t5(rearrange=(dict(name='deshuffle'),), target='text', **_NOTHING), f'{_T5}:deshuffle', 'plain'),
  Show('ul2', 'UL2: one of seven denoisers per sequence, marked by a mode token', 't5',
       _t5(denoisers=(
         dict(where=dict(name='exact_spans', rate=0.15, mean=3.0), mode='[R]'),
         dict(where=dict(name='exact_spans', rate=0.15, mean=8.0), mode='[R]'),
         dict(where=dict(name='exact_spans', rate=0.5, mean=3.0), mode='[X]'),
         dict(where=dict(name='exact_spans', rate=0.5, mean=8.0), mode='[X]'),
         dict(where=dict(name='exact_spans', rate=0.15, mean=64.0), mode='[X]'),
         dict(where=dict(name='exact_spans', rate=0.5, mean=64.0), mode='[X]'),
         dict(where=dict(name='prefix', rate=0.25), mode='[S]'),
       )), 't5/ul2.py', 'plain'),
  Show('contrastive', 'SimCSE: the same text twice under dropout, against the rest of the batch', 'bert',
       dict(name='contrastive', pool='trunk'), 'contrastive/simcse.py',
       labels='each first copy has to find its second copy among those of the batch'),
)  # fmt: skip
