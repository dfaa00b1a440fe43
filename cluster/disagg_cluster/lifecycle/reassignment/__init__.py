"""A worker's move from one role to another, decided purely, step by step, and back if need be."""
