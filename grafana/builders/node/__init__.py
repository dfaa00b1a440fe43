"""The dashboard of a node."""
