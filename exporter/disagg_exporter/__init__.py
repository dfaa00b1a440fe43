"""GPUs, engines and phases of one node, turned into one metrics page."""

__version__ = "0.1.0"
