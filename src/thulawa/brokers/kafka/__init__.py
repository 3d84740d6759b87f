"""Kafka in plain Python: a broker for development, topics, transactions, groups."""
