"""Commands with a live view."""
