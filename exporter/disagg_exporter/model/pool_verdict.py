"""The verdict on a model's pools, in words, by how full they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from disagg_exporter.model.enums import Role

LEAST_KNOWN_RATIO = 0.5
"""Share of a pool's GPUs whose use must be known for a verdict; decisions require the same
(alerts/rules/disagg-recording-pools.yaml).
"""

_BUSY = 0.5
_FILLING = 0.7
_FULL = 0.95
_LOPSIDED = 2.0

_NOTHING_TO_DO = "nothing to do, both below 50 %"


def pool_verdicts(
    used_ratios: Mapping[Role, float], *, tokens_late: bool = False
) -> tuple[str, ...]:
    """Return the verdicts on one model's pools: prefill and decode together, and mixed engines.

    The wording and bounds are those of alerts/rules/disagg-recording-verdict.yaml, which dashboards
    show. Pools of which nothing is known get no verdict.

    Args:
        used_ratios: Capacity used, from 0, of the pools where it is known.
        tokens_late: Whether users' tokens come late (`waits.are_late`).
    """
    return (*_of_both(used_ratios, tokens_late), *_of_mixed(used_ratios))


def _of_both(used_ratios: Mapping[Role, float], tokens_late: bool) -> Iterator[str]:
    prefill, decode = used_ratios.get(Role.PREFILL), used_ratios.get(Role.DECODE)
    if prefill is not None and decode is not None:
        yield _words(prefill, decode, tokens_late)
    elif prefill is not None:
        yield "what decode can take is not learned yet"
    elif decode is not None:
        yield "what prefill can take is not learned yet"


def _words(prefill: float, decode: float, tokens_late: bool) -> str:
    if prefill > _BUSY and prefill > _LOPSIDED * decode:
        return "prefill is short of GPUs"
    if decode > _BUSY and decode > _LOPSIDED * prefill:
        return "decode is short of GPUs"
    if max(prefill, decode) <= _BUSY:
        # There is room, yet users wait: more GPUs would not help.
        return "both below 50 %, yet tokens are late" if tokens_late else _NOTHING_TO_DO
    if min(prefill, decode) > _FILLING:
        return "both pools are filling up"
    return "the pools are in balance"


def _of_mixed(used_ratios: Mapping[Role, float]) -> Iterator[str]:
    mixed = used_ratios.get(Role.MIXED)
    if mixed is None:
        return
    if mixed >= _FULL:
        yield "mixed engines are full"
    else:
        yield "mixed engines are filling up" if mixed > _FILLING else "mixed engines have room"
