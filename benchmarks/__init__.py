"""Benchmarks: each module prints a table, or with ``--json`` one object per row."""
