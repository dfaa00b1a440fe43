"""What is received of engines, how it is kept within bounds, and what is kept of it."""
