"""The bounds that panels draw: those of the alerts as shipped (tests check that they match)."""

from __future__ import annotations

from grafana.builders.panels.frame import Steps

TTFT_SECONDS, ITL_SECONDS = 0.5, 0.05
"""A first token, and a next token, is slow above these."""
SLOW_SHARE = 0.05
"""The share of requests, and of tokens, that may be slow."""
FULL, FILLING = 0.95, 0.7
"""Capacity used at which a pool is full, and at which it is filling up."""
IMBALANCE_LOG2 = 1.0
"""How much fuller one pool may be than the other, as a base-2 logarithm."""
FOREIGN_SHARE = 0.1
"""The other phase's share of a pool's work."""
UNATTRIBUTED_SHARE = 0.1
"""Unattributed share of a GPU's time."""
WATERMARK_SECONDS = 120.0
"""How far a GPU's accounting may lag."""
RESIDUAL_RATIO = 0.25
"""Mean error of the cost model, over the step."""
TRANSFER_SECONDS = 1.0
"""The mean time of a KV transfer."""
FORECAST_ERROR = 0.5
"""Error of a forecast an hour ahead, over the actual load."""

FULLNESS: Steps = ((None, "green"), (FILLING, "yellow"), (FULL, "red"))
"""Colours of capacity used: from where the alerts call a pool filling, and full."""


def limit(bound: float, *, below: str = "transparent") -> Steps:
    """Red from a bound on: a dashed line there, or the colour of a number."""
    return ((None, below), (bound, "red"))
