"""The terminal: keys, colours and painting."""
