"""The job of the Thulawa paper on Spark, measured on this machine."""
