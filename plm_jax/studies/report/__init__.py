"""The HTML report of `plm-jax report`.

`contents` reads folders, `run_samples` computes noise and samples of a run, `figures` thins curves for the page, and
`sections`, `papers` and `page` write HTML with `html_parts`. Script and style are `page.js` and `page.css`.
"""
