"""Rows of the metrics page from a snapshot, one module a subject."""
