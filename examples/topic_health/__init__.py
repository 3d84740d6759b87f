"""How healthy are the messages of a topic: valid and invalid ones, counted by the second."""
