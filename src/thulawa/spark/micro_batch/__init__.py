"""Streams on Spark: a topology as one streaming query."""
