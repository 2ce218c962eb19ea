"""Maps of parameters that make a network smaller, independent of tasks, runs and folders.

`prune.py` selects the weights, heads and layers to remove, `quantise.py` represents weights in 8 bits, `methods.py`
parses the names of methods. The adapters `prune` and `quantise` train with these maps.
"""
