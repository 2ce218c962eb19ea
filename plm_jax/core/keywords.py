"""Types of the keywords that a config may set."""

from typing import Annotated

# Annotations of keywords are read from source and never evaluated (config/values.py). A bound is written as a
# comparison with x, or 'any' if every number is valid. A kind names the contents of a block:
# `Annotated[Mapping[str, Any], 'noise.where']`. Any float is 0 or a number that float32 holds (`values.in_float32`).
Rate = Annotated[float, '0 <= x <= 1']
PartRate = Annotated[float, '0 <= x < 1']  # below 1, so that something is left: dropout, smoothing of labels
Count = Annotated[int, '1 <= x']
NonNegativeInt = Annotated[int, '0 <= x']
Samples = Annotated[int, '1 <= x <= 10_000']  # words that each pair or position is compared with
Depth = Annotated[int, '1 <= x <= 10_000']  # layers, each of which costs time to trace or to index
Weight = Annotated[float, '0 <= x <= 1_000_000']  # of a term of a loss, or a share in any proportion
Std = Annotated[float, '0 <= x <= 100']  # of initial values
Epsilon = Annotated[float, '0 < x <= 1']  # added to a divisor that may be 0
Momentum = Annotated[float, '0 <= x < 1']  # decay of a running mean
Temperature = Annotated[float, '0 < x <= 1_000_000']
LayerNumber = Annotated[int, '-1000 <= x < 1000']  # from 0, or from -1 downwards
Seed = Annotated[int, '0 <= x < 4_294_967_296']  # 32 bits
# of a run: whole steps, or a fraction of it up to 1.0
Duration = Annotated[int, '0 <= x <= 1_000_000_000'] | Annotated[float, '0 <= x <= 1_000_000_000']
