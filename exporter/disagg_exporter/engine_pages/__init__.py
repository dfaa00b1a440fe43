"""Parses engines' metrics pages, and derives what happened between two of them."""
