"""A snapshot of the node, turned into the metric families of its page."""
