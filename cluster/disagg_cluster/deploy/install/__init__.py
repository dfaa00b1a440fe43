"""Installs disagg-node on a machine without Kubernetes: which files where, and the next steps."""
