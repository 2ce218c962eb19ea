"""Tiny networks of transformers' classes under the names of published weights.

python -m tests.studies.tables.standins DIR [ROW ...]

What the tables of published weights need of a folder, for whoever has no downloads. Their numbers mean nothing.
"""

import pathlib
import sys

from experiments.tables.shared.published import KNOWN, RELEASED
from plm_jax.text import byte_bpe

ELMO = pathlib.Path(__file__).parents[2] / 'fixtures' / 'elmo'
SIZES = {
  'hidden_size': 16, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 32, 'embedding_size': 16,
  'max_position_embeddings': 1026,
}  # fmt: skip
SEQ2SEQ = {
  'd_model': 16, 'encoder_layers': 2, 'decoder_layers': 2, 'encoder_attention_heads': 2, 'decoder_attention_heads': 2,
  'encoder_ffn_dim': 32, 'decoder_ffn_dim': 32, 'max_position_embeddings': 1026,
}  # fmt: skip
FIELDS = {  # model_type: fields of its config
  'gpt2': {'n_embd': 16, 'n_layer': 2, 'n_head': 2, 'n_positions': 1024},
  'distilbert': {'dim': 16, 'n_layers': 2, 'n_heads': 2, 'hidden_dim': 32},
  'xlnet': {'d_model': 16, 'n_layer': 2, 'n_head': 2, 'd_inner': 32},
  't5': {'d_model': 16, 'd_kv': 8, 'num_layers': 2, 'num_heads': 2, 'd_ff': 32},
  'bart': SEQ2SEQ,
  'albert': SIZES | {'embedding_size': 8},
  'deberta': SIZES | {'relative_attention': True, 'pos_att_type': ['c2p', 'p2c'], 'type_vocab_size': 0},
  'deberta-v2': SIZES | {'relative_attention': True, 'pos_att_type': ['c2p', 'p2c'], 'type_vocab_size': 0},
  'roberta': SIZES | {'type_vocab_size': 1, 'pad_token_id': 1},
}
SPECIALS = {'gpt2': 'gpt2', 'llama': 'gpt2', 'roberta': 'roberta', 'bart': 'roberta'}
CLASSES = {'gpt2': 'CausalLM', 'llama': 'CausalLM', 't5': 'Seq2SeqLM', 'bart': 'Seq2SeqLM'}
TEXTS = ('The teacher carried an old lantern to the harbour, since it was raining.', 'Who sold the clock?') * 8


def make(root: pathlib.Path, *names: str) -> pathlib.Path:
  """Write the folders of rows, all if none is named, below `root`."""
  import torch
  import transformers

  for name in names or (*RELEASED, 'SmolLM2-135M-Instruct-4bit'):
    released = RELEASED.get(name) or tuple(KNOWN[name][key] for key in ('id', 'model'))
    kind, place = released[1], root / KNOWN.get(name, {}).get('folder', name)
    if kind == 'elmo':
      from plm_jax.weights.convert import import_bilm

      import_bilm(ELMO, place)
      continue
    vocab = byte_bpe.train(TEXTS, size=300, specials=SPECIALS.get(kind, 'all'))
    fields = {'vocab_size': vocab.size} | FIELDS.get(kind, SIZES)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **fields)
    whole = getattr(transformers, f'AutoModel{"For" if kind in CLASSES else ""}{CLASSES.get(kind, "")}')
    whole.from_config(config).save_pretrained(place)
    vocab.save(place)
    (place / 'vocab.json').unlink()  # as published: tokenizer.json alone
  return root


if __name__ == '__main__':
  make(pathlib.Path(sys.argv[1]), *sys.argv[2:])
