"""Layouts of the fields of a labelled example: one per file, named in configs as `data.layout`.

A file has `make(*, vocab, fields) -> framing.Layout` for `fields` fields; it raises a ValueError if the vocabulary
lacks a token. Shared code is in `framing`.
"""
