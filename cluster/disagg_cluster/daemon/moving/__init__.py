"""Changes of a worker's role: observed, carried out and routed step by step."""
