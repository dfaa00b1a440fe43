"""What is received of engines, and how it is kept within bounds."""
