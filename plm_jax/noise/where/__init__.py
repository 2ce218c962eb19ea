"""Where to corrupt: (key, row) -> spans. Configs name the functions of all files of this folder by one name.

Each file bounds how many tokens its functions may choose, in `CAPACITY`.
"""
