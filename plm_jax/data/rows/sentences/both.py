"""A sentence ends at the end of a line, or as with `punctuation` (paragraphs and headings a line)."""

from plm_jax.data.rows.sentences.line import starts as starts
from plm_jax.data.rows.sentences.punctuation import of_ids as of_ids
