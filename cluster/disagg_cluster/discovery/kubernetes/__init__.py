"""Kubernetes data of this node: its pods, and which of their containers holds which GPU."""
