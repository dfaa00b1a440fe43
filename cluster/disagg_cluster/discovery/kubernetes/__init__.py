"""What Kubernetes tells of this node: its pods, and which of their containers holds which GPU."""
