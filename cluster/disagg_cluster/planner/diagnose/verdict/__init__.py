"""The values that make up a diagnosis."""
