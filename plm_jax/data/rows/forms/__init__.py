"""How a row of data is written as text, for tasks that read text and write text: one form per file, named in configs as
`data.form.name` of the source `text_to_text`.

A file has

    QUICK (where needed)       keywords that make it small, for a smoke test (`file.py:quick`)
    make(*, <settings>)        -> `written.Form`: which fields it reads, and a function from a row to its text

`write` of a form raises ValueErrors that name the field; the source adds the row. `written` holds what forms share.
"""
