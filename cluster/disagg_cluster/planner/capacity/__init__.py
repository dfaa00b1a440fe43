"""Capacity of engines within the targets, and the number of engines that a load needs."""
