"""State stores: key-value, window, session and versioned, over a backing mapping."""
