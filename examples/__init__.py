"""Programs on the public API, to read and to copy from."""
