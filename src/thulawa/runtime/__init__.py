"""The task runner: one partition group, record by record, whoever hosts it."""
