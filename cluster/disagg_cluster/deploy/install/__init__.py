"""Putting disagg-node on a machine without Kubernetes: what to write where, and what to do then."""
