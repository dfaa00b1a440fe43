"""Turns a snapshot of the node into the metric families of its page."""
