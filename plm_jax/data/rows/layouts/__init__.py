"""How the fields of a labelled row stand in it: one layout per file, named in configs as `data.layout`.

A file has `make(*, vocab, fields) -> framing.Layout` for so many fields; it raises a ValueError where the vocabulary
lacks a token. `framing` holds what such files share.
"""
