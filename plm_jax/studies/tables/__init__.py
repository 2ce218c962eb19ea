"""Tables of papers, measured: `file` reads what a table is, `runs` makes its runs, `cells` keeps what came out,
`intervals` says how far that can be trusted, `render` writes it as text, numbers and a picture.

The command is `plm-jax tables`.
"""
