"""Streams on Spark under kills, held against a model: see `python -m tests.chaos --help`."""
