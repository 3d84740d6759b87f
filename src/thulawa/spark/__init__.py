"""Thulawa on Spark: the only layer that imports pyspark.

What runs inside Spark's Python workers is in `worker`, `rows` and `operator`, which do not
import it: a worker that is handed an operator needs pyarrow and the engine.
"""
