"""The host's side: text in, batches of fixed shape out, as dicts of numpy arrays.

Each source is a file with `make(*, vocab, path, length, batch_size, seed, ...) -> Source` and `GIVES`, the keys of
`types.BATCH` that its batches may have. Which row comes when depends on the seed and the step alone (`rows/order.py`).
Rows hold clean token ids: noise is drawn on the device. Positions and word starts are no keys: they follow from
`segment_ids` and `Vocab.starts_word`.

Texts to be written (`labelled` with kind='text', `text_to_text`) stand in rows of their own: `tokens` and `segment_ids`
[b, l] are what is read, `target_tokens` and `target_segment_ids` [b, t] what is written, t = `target_length`. Both have
the special tokens of their layouts; the token that a decoder reads first is not among them.

`batch_size` is that of all hosts together. Host i of n yields rows i * b/n to (i + 1) * b/n of each global batch, so
the hosts' parts, concatenated in order, are the batch of a single host, bit for bit.

`corpora/` reads text and records, whatever they are stored in (`corpora/formats/`); `rows/` makes rows of them, with
layouts and kinds of labelled rows (`rows/layouts/`, `rows/kinds/`), and how a row is written as text (`rows/forms/`).
`pydocs/` is a command.
"""
