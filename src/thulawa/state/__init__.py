"""State stores: key-value, window, session and versioned, over a small backing interface."""
