"""The bounds that panels draw: those of the alerts as they are shipped (tests hold them equal)."""

from __future__ import annotations

from grafana.builders.panels.frame import Steps

TTFT_SECONDS, ITL_SECONDS = 0.5, 0.05
"""A first token, and a next one, is slow above these."""
SLOW_SHARE = 0.05
"""So many of the requests, and of the tokens, may be slow."""
FULL, FILLING = 0.95, 0.7
"""Capacity used: full, and filling up."""
IMBALANCE_LOG2 = 1.0
"""Prefill so much fuller than decode, or less full, as a base-2 logarithm."""
FOREIGN_SHARE = 0.1
"""The other phase's share of a pool's work."""
UNATTRIBUTED_SHARE = 0.1
"""Of a GPU's time."""
WATERMARK_SECONDS = 120.0
"""A GPU's accounts lag by so much."""
RESIDUAL_RATIO = 0.25
"""How far the cost model is off."""
TRANSFER_SECONDS = 1.0
"""The mean time of a KV transfer."""
FORECAST_ERROR = 0.5
"""Of a forecast, an hour ahead, over the load that came."""

FULLNESS: Steps = ((None, "green"), (FILLING, "yellow"), (FULL, "red"))
"""Capacity used: when the alerts say that a pool fills, and that it is full."""


def limit(bound: float, *, below: str = "transparent") -> Steps:
    """Red from a bound on: a dashed line there, or the colour of a figure."""
    return ((None, below), (bound, "red"))
