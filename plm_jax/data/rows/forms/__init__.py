"""Text formats of an example, one per file, for tasks that read and write text.

Configs name them as `data.form.name` of the source `text_to_text`. A file has

    QUICK (if needed)          keywords that make it small, for a smoke test (`file.py:quick`)
    make(*, <settings>)        -> `written.Form`: the fields it reads, and a function from a row to its text

`write` of a form raises ValueErrors that name the field; the source adds the row. Shared code is in `written`.
"""
