"""Kinds of labelled examples: one per file, named in configs as `data.kind`.

A file has

    GIVES                      keys of `batch.BATCH` that it adds to a batch, as ('label',)
    QUICK (if needed)          keywords of the data block that names it, for a smoke test (`file.py:quick`)
    SPACED (if needed)         True if each text is a word with a space before it
    make(*, records, asked)    -> `examples.Examples`: the examples, their texts, and the arrays of a batch besides
    tokens

`records` are the rows of the split (`corpora/records.py`), and `asked` the settings of the config
(`examples.ExampleSettings`). `make` raises ValueErrors that name the data, the row and the field, as `Records.value`
and `Records.text` do. Shared code is in `examples`.
"""
