"""Child processes: start, death, descendants."""
