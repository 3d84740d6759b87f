"""Spark sources and sinks for the embedded log and for Kafka."""
