"""What an engine can do at most; so far, its learned step times as plain values."""
