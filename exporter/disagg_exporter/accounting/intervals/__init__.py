"""Time in integer nanoseconds: engines' finalized pieces, and devices' time cut by them."""
