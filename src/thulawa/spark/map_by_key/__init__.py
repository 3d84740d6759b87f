"""``map_by_key``: the engine over any DataFrame."""
