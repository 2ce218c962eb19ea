"""Weights in other forms than safetensors, as tensors by their names in transformers; one file a form.

A file has `read(file, folder) -> release.Release`. It writes config.json and the tokenizer into the empty `folder` if
the weights hold them. `io/other_forms.py` names the form of a path.
"""
