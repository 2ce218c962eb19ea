"""Data sources: text or records in, batches of fixed shape out, as dicts of numpy arrays.

Each source is a file with `make(*, vocab, path, length, batch_size, seed, ...) -> Source` and `GIVES`, the keys of
`batch.BATCH` that its batches may have. The order of examples depends only on the seed and the step (`rows/order.py`).
Batches hold clean token ids; noise is sampled on the device. Positions and word starts are no keys, because they follow
from `segment_ids` and `Vocab.starts_word`.

Target texts (`labelled` with kind='text', `text_to_text`) have their own arrays. `tokens` and `segment_ids` [b, l] are
the inputs, `target_tokens` and `target_segment_ids` [b, t] the targets, t = `target_length`. Both contain the special
tokens of their layouts. The start token of a decoder is not among them.

`batch_size` is the global batch size. Host i of n yields rows i * b/n to (i + 1) * b/n of each global batch. The parts
of all hosts, concatenated in order, equal the batch of a single host bit for bit.

`corpora/` reads text and records in any storage format (`corpora/formats/`). `rows/` builds examples and sequences from
them, with layouts and kinds of labelled examples (`rows/layouts/`, `rows/kinds/`) and text formats of an example
(`rows/forms/`).

Keywords that several sources share are documented here only:

  vocab       token ids and special tokens
  path        location of the text or records, as `corpora/sources.py` takes it
  split       split of the data; slices as in TFDS are allowed, such as 'train[:90%]'
  length      tokens per sequence, special tokens included
  batch_size  sequences or examples per step over all hosts
  seed        seed of the order, and of everything else that the source samples
  shuffle     False keeps the order of the source
  documents   end of a document or row in a .txt file: 'blank_line', 'line', 'every_line', 'file' or 'exact_file'
  max_bytes   largest document, row or Parquet row group in bytes, held in memory
  cache       folder for downloads, token stores and tables
  host        index of this process
  hosts       number of processes
  characters  add the characters of each word; a run sets it if its model reads them

Sources of plain text (`stream`, `bptt`, `pairs`, `cooccurrence`) also share these (see `rows.documents.Corpus`):

  text        field with the text, if the data has several fields
  quality     keywords of `corpora.filters.filter_documents`, such as {'min_chars': 200}; documents that fail are
              dropped, and the log reports how many and why
"""
