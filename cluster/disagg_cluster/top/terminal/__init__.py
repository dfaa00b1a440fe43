"""The terminal itself: its keys, its colours, what is painted."""
