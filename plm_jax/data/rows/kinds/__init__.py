"""What a labelled row is: one kind per file, named in configs as `data.kind`.

A file has

    GIVES                      keys of `types.BATCH` that it adds to a batch, as ('label',)
    QUICK (where needed)       keywords of the data block that names it, for a smoke test (`file.py:quick`)
    SPACED (where needed)      True where each text is a word with a space before it
    make(*, records, asked)    -> `examples.Examples`: the rows that are kept, their texts, and what stands in a batch
                               beside their tokens

`records` are the rows of the split (`corpora/records.py`), and `asked` is what the config says
(`examples.ExampleSettings`). `make` raises ValueErrors that name the data, the row and the field, as `Records.value`
and `Records.text` do. What kinds share stands in `examples`.
"""
