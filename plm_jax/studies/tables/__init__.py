"""Tables of papers, measured; the engine of `plm-jax tables`.

`file` reads a table file, `runs` plans its runs, and `filling` and `making` run them. `cells` stores their results,
`intervals` computes confidence intervals, and `render` writes text, numbers and a picture.
"""
