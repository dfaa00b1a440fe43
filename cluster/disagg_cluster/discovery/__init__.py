"""Finds the engines of a node that somebody else started, and follows them as they come and go."""
