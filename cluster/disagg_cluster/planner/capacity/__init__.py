"""What engines can take at the targets, and how many of them a load needs."""
