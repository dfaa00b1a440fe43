"""How long transfers of KV wait for each other.

A transfer needs its sender and its taker free, in the order in which transfers are asked for: who
waits for a busy one keeps the other idle. So links carry a share of what they could, and before
that share they queue as one server does (M/G/1, Pollaczek and Khinchine). That is 0.9 to 1.6 times
the mean wait of transfers that are booked one by one, at any part of what is carried.
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
    """This share of all transfers waits so long."""

    share: float
    seconds: float


class Transfers(NamedTuple):
    """What is sent: its mean time, and the squared coefficient of variation of that."""

    seconds: float
    dispersion: float


def link_waits(
    transfers: Transfers, requests_per_second: float, senders: int, takers: int
) -> tuple[Wait, ...] | None:
    """How long transfers wait for a sender and a taker that are both free; None: they pile up.

    Who finds both free does not wait, the others exponentially long.
    """
    seconds, dispersion = transfers
    carried = carried_share(senders, takers, dispersion) * min(senders, takers)
    used = requests_per_second * seconds / carried
    if used >= 1:
        return None
    mean_seconds = seconds * (1 + dispersion) / (2 * (1 - used))
    middles = [(number + 0.5) / _WAITS for number in range(_WAITS)]
    waits = [Wait(used / _WAITS, -math.log1p(-middle) * mean_seconds) for middle in middles]
    return (Wait(1 - used, 0.0), *waits)


def carried_share(senders: int, takers: int, dispersion: float) -> float:
    """What links of so many engines carry when all ask at once, over what the fewer could.

    Of large pools that of smaller ones in the same proportion: it changes little beyond.
    """
    most = max(senders, takers)
    if most > _MOST_ENGINES:
        senders, takers = (max(1, round(each * _MOST_ENGINES / most)) for each in (senders, takers))
    return _booked_share(senders, takers, dispersion)


@lru_cache(maxsize=1024)
def _booked_share(senders: int, takers: int, dispersion: float) -> float:
    """Book transfers one after the other, as early as both ends allow.

    Prompts come from any sender; takers get one each in turns of chance order, as a router does
    that counts requests. There is no closed form (products of random matrices in max-plus algebra,
    Baccelli, Cohen, Olsder and Quadrat 1992); the draws are always the same ones.
    """
    if min(senders, takers) == 1:
        return 1.0
    rng = random.Random("transfers")
    spread = math.sqrt(math.log1p(dispersion))
    sender_free, taker_free = [0.0] * senders, [0.0] * takers
    turn: list[int] = []
    total = 0.0
    for _ in range(_TRANSFERS):
        if not turn:
            turn = list(range(takers))
            rng.shuffle(turn)
        sender, taker = rng.randrange(senders), turn.pop()
        seconds = math.exp(spread * rng.gauss(0.0, 1.0))
        total += seconds
        end = max(sender_free[sender], taker_free[taker]) + seconds
        sender_free[sender] = taker_free[taker] = end
    return total / max(sender_free + taker_free) / min(senders, takers)
