"""The node's web page: its GPUs by phase over the last minute, and its problems."""
