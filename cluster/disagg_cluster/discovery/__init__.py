"""Finds the engines of a node that others started, and follows them as they come and go."""
