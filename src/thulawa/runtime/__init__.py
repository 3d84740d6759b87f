"""The task runtime: one partition group, record by record, on any host."""
