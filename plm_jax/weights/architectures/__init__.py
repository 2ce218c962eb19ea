"""Published architectures, one file each; `weights/table.py` describes their attributes and functions."""
