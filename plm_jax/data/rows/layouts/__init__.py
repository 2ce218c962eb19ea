"""How the fields of a labelled row stand in it: one layout per file, named in configs as `data.layout`.

A file has

    TYPED                  whether rows have `type_ids`: 0 for the first field and its special tokens, then 1, ...
    LAST_TYPE              the type of the last token of a row, where it has one of its own; else None
    frames(vocab, fields)  -> the special tokens before and after each of so many fields (`packing.Frame`, `framing`);
                           a ValueError where the vocabulary lacks one
"""
