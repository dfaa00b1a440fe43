"""Intervals of time in integer nanoseconds: finalized pieces, and a device's time cut by them."""
