"""Continuous execution: stream tasks in long-running Spark tasks."""
