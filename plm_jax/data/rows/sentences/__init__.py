"""Rules for the end of a sentence: one per file, named in configs as `data.sentences`.

A file has one or both of these; a sentence starts wherever one of them reports it, and wherever a document starts.

  starts(text) -> list[int]            characters of a document at which a sentence starts, ascending
  of_ids(ids, *, vocab) -> int64[n]    positions in a token store [n] at which a sentence starts
"""
