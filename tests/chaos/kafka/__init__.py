"""Kills of drivers, workers and brokers on real Kafka and Spark; a checker of what is left."""
