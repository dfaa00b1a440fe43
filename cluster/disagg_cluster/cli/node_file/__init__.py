"""Commands about the node file."""
