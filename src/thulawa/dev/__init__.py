"""Tools for development machines: a local Kafka broker and its jars."""
