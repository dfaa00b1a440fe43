"""Keeps the node's workers: the decisions about one, and what acts on them."""
