"""Event priority: buckets of partitions, their layout, clients and column expressions."""
