"""What is received of engines, how it is bounded, and what of it outlives the daemon."""
