"""Spark sessions configured for Thulawa, and the Python workers they start."""
