"""The node that both processes use."""

from __future__ import annotations

NODE = "gpu-7"
PODS = 110
UUIDS = [f"GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb5176{at}" for at in range(8)]
