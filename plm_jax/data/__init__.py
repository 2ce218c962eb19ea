"""The host's side: text in, batches of fixed shape out, as dicts of numpy arrays.

Each source is a file with `make(*, vocab, path, length, batch_size, seed, ...) -> Source`. Which row comes when depends
on the seed and the step alone. Rows hold clean token ids: whatever is masked, corrupted or drawn is so on the device.

Keys of a batch, for b rows of l tokens:

  tokens       int32[b, l]     ids, `Vocab.pad_id` where there is no token
  segment_ids  int32[b, l]     numbers the documents of a row from 1; 0 is padding
  type_ids     int32[b, l]     which field of the example a token belongs to, from 0 (only where the layout has it)
  label        int32[b]        class, or float32[b], value (only labelled sources)
  labels       int32[b, l]     class of the word that begins here, -1 elsewhere (only labelled words)
  row_id       int32[b]        number of the row in its source, -1 where the row weighs nothing
  first, next, other           int32[b, l] each, the segments of which a pair is made, and int32[b] first_length,
                               next_length and other_length (only `pairs`, which has no tokens and segment_ids)
  num_tokens   int32[b]        about how many tokens the row feeds, where segment_ids cannot tell
  epoch        int32[b]        how often the source was gone through before
  row_weight   float32[b]      1, or 0 for a copy of another row that only fills the batch up
  part         int32[b]        which source the row comes from (only `mixture`)
  reset        bool[b]         the row begins anew and not where the row before it in this place ended (only `bptt`)
  next_token   int32[b]        what follows the last token of the row, `Vocab.pad_id` where nothing does (only `bptt`)
  reversed     bool[b]         the row holds text from its end to its beginning (only `bptt`)

`swapped_tokens`, `swapped_segment_ids` and `swapped_type_ids` hold the fields in reverse order, where asked for.
Positions and word starts are not among them: they follow from `segment_ids` and `Vocab.starts_word`.

`batch_size` is that of all hosts together. Host i of n yields rows i * b/n to (i + 1) * b/n of each global batch, so
the hosts' parts, concatenated in order, are the batch of a single host, bit for bit.
"""
