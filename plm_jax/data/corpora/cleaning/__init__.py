"""Corpora for pre-training: `quality` judges a text, `contamination` finds evaluation sets in it, `copies` what was
read before, `words` says for both what counts as a word, and `passes` reads a corpus once, with bounded memory, and
goes on where it was stopped.

The command is `plm-jax corpus`.
"""
