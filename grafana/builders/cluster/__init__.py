"""The dashboard of a cluster."""
