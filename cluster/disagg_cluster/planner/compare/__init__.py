"""Two spans of time held against each other, at equal load."""
