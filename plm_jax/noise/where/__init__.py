"""Where to corrupt: (key, row) -> spans. In configs the functions of all files of this folder go by their own names.

Every public function whose first argument is `key` is one. Its file has a row for it in `CAPACITY`: the number of slots
that hold its choice in a row of a given length.
"""
