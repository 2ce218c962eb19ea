"""One page about runs: `found` says what folders hold, `asked` what noise does and what models write, `figures` makes
curves small enough for a page, `sections` and `page` write HTML by `markup`, whose script and style are `page.js` and
`page.css`.

The command is `plm-jax report`.
"""
