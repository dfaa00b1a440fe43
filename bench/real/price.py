"""Input's share of a pair's cost, beside OpenCost's formula (`docs/token-prices.md`).

A pair of real vLLM 0.32 engines, captured with NixlConnector: neither does the other's phase, so
the steps that each recorded are the truth. Mixed steps would add the error of prefill's share,
which has its own table: at one price a GPU-hour both shares are the same.
"""

from __future__ import annotations

from disagg_exporter.model import Phase, Role
from support.captured_engines import opencost_input_share, replay

BAR_POINTS = 3.0
_PAIR = "nixl"


def price_table() -> tuple[str, bool]:
    """Return the comparison as text, and whether the bar is met."""
    recorded, used = dict.fromkeys(Phase, 0.0), dict.fromkeys(Phase, 0.0)
    for role, own in ((Role.PREFILL, Phase.PREFILL), (Role.DECODE, Phase.DECODE)):
        accounting, recorded[own], end = replay(f"{_PAIR}_{role.value}", role)
        for phase, seconds in accounting.engine_seconds(end).items():
            used[phase] += seconds
    true = 100 * recorded[Phase.PREFILL] / sum(recorded.values())
    ours = 100 * used[Phase.PREFILL] / sum(used.values())
    table = (
        f"{'input share of cost, captured pair of vLLM 0.32':46} {'steps':>8} {'ours':>8} "
        f"{'OpenCost':>9} {'bar':>5}\n"
        f"{_PAIR:46} {true:6.1f} % {ours:6.1f} % {100 * opencost_input_share(_PAIR):7.1f} % "
        f"{BAR_POINTS:3.0f} p"
    )
    return table, abs(ours - true) <= BAR_POINTS
