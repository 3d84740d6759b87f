"""What every layer may use: errors, durations, names, serdes."""
