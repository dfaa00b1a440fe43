"""The table of metric families, one module a subject."""
