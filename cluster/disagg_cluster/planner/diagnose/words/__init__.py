"""Output of a diagnosis: text in 80 columns, and JSON."""
