"""What every layer may use: errors, durations, names. Standard library only."""
