"""The choice of positions to corrupt: (key, row) -> spans.

Configs name the functions of this folder without their file. Every public function whose first argument is `key` is
one. Its file lists it in `CAPACITY`, with the number of slots that hold its choice in a row of a given length.
"""
