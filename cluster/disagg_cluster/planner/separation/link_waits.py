"""How long KV transfers wait for each other.

A transfer needs both its sender and its receiver free, and transfers start in the order of their
requests: one that waits for a busy end keeps the other end idle. Links thus carry only a share of
what they could, and below that share they queue like a single server (M/G/1, Pollaczek and
Khinchine). The mean wait is 0.9 to 1.6 times that of transfers simulated one by one, at any load.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import NamedTuple

_WAITS = 8
_TRANSFERS = 6000
_MOST_ENGINES = 32


class Wait(NamedTuple):
    """A share of all transfers, and how long these wait."""

    share: float
    seconds: float


class Transfers(NamedTuple):
    """Mean time of a transfer, and the squared coefficient of variation of that."""

    seconds: float
    dispersion: float


def link_waits(
    transfers: Transfers, requests_per_second: float, senders: int, receivers: int
) -> tuple[Wait, ...] | None:
    """How long transfers wait for a free sender and receiver; None if they pile up.

    Transfers that find both free do not wait; the waits of the others are exponential.
    """
    seconds, dispersion = transfers
    carried = carried_share(senders, receivers, dispersion) * min(senders, receivers)
    used = requests_per_second * seconds / carried
    if used >= 1:
        return None
    mean_seconds = seconds * (1 + dispersion) / (2 * (1 - used))
    middles = [(number + 0.5) / _WAITS for number in range(_WAITS)]
    waits = [Wait(used / _WAITS, -math.log1p(-middle) * mean_seconds) for middle in middles]
    return (Wait(1 - used, 0.0), *waits)


def carried_share(senders: int, receivers: int, dispersion: float) -> float:
    """What saturated links carry, over what the smaller number of engines could.

    Large pools are computed as smaller ones in the same proportion: the share changes little.
    """
    most = max(senders, receivers)
    if most > _MOST_ENGINES:
        senders, receivers = (
            max(1, round(each * _MOST_ENGINES / most)) for each in (senders, receivers)
        )
    return _simulated_share(senders, receivers, dispersion)


@lru_cache(maxsize=1024)
def _simulated_share(senders: int, receivers: int, dispersion: float) -> float:
    """Simulate transfers one after the other, each as early as both ends allow.

    Senders are random; receivers get one prompt each per round in random order, as from a router
    that counts requests. There is no closed form (products of random matrices in max-plus algebra,
    Baccelli, Cohen, Olsder and Quadrat 1992); the random draws are always the same.
    """
    if min(senders, receivers) == 1:
        return 1.0
    rng = random.Random("transfers")
    spread = math.sqrt(math.log1p(dispersion))
    sender_free, receiver_free = [0.0] * senders, [0.0] * receivers
    turn: list[int] = []
    total = 0.0
    for _ in range(_TRANSFERS):
        if not turn:
            turn = list(range(receivers))
            rng.shuffle(turn)
        sender, receiver = rng.randrange(senders), turn.pop()
        seconds = math.exp(spread * rng.gauss(0.0, 1.0))
        total += seconds
        end = max(sender_free[sender], receiver_free[receiver]) + seconds
        sender_free[sender] = receiver_free[receiver] = end
    return total / max(sender_free + receiver_free) / min(senders, receivers)
