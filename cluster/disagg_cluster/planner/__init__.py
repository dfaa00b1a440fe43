"""Capacity planning: the load of the past, the load to come, and the GPUs that it needs."""
