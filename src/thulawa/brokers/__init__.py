"""Brokers: the embedded log and Kafka."""
