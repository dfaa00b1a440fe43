"""Requests to routers and engines during a role change, and the probe that proves it."""
