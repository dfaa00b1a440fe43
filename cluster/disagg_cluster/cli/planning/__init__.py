"""Planning commands, one file each, and their common source of past load."""
