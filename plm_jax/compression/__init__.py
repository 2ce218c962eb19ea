"""Maps of parameters that make a network smaller: nothing here knows a task, a run or a folder.

`prune.py` says which weights, heads and layers go, `quantise.py` what stands for a weight in 8 bits, `methods.py` reads
how a person names them. The adapters `prune` and `quantise` train with these maps.
"""
