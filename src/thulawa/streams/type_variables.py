"""The type variables of the DSL: keys and values of streams and tables."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
K1 = TypeVar("K1")  # of the result, or of the other side of a join
V1 = TypeVar("V1")
V2 = TypeVar("V2")  # of the result of a join
A = TypeVar("A")  # an aggregate
R = TypeVar("R")  # the keys of an aggregation: K, or Windowed[K]
