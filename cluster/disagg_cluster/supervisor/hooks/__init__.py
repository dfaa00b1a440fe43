"""Who outside is told when a worker fails."""
