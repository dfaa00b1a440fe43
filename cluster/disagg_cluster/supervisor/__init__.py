"""Supervises the node's workers: carries out the decisions made about each."""
