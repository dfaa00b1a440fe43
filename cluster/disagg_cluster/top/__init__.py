"""A live view of one node or several in a terminal."""
