"""What a labelled row is: one kind per file, named in configs as `data.kind`.

A file has

    GIVES                           keys of `types.BATCH` that it adds to a batch, as ('label',)
    QUICK (where needed)            keywords of the data block that names it, for a smoke test (`file.py:quick`)
    read(records, asked)            -> `examples.Examples`: the rows that are kept, their texts and their labels
    targets(given, offsets, place)  -> (chosen, width) -> the arrays with these keys for some of the rows

`records` are the rows of the split (`corpora/records.py`) and `asked` is what the config says (`examples.Asked`);
ValueErrors name the data, the row and the field, as those of `Records.value` and `Records.text` do. `offsets`
int64[texts+1] says where the tokens of each text begin. `chosen` int64[b] are numbers of kept rows, and rows of this
batch are `width` tokens long. `place(values, chosen, width)` takes a value int32 per token of all texts, and puts it
where the token stands in the rows, -1 elsewhere: int32 with the shape of `tokens`. That shape is [b, width], or
[b, k, width] where a row has k sequences (`Examples.sequences`), as for options to choose from.
"""
