"""Cleaning of pre-training corpora; the command is `plm-jax corpus`.

`quality` filters texts, `contamination` finds evaluation sets in them, and `copies` finds duplicates. `word_sequences`
defines words for both. `passes` reads a corpus once, with bounded memory, and continues after an interruption.
"""
