"""What routers and engines are asked for when a worker changes its role, and what proves it."""
