"""Conformance with Kafka Streams: recorded inputs and outputs, run on our own runtime."""
