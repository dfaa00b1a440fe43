"""The engines of a node: their messages and pages in, how full each is out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from disagg_exporter.fullness.engine import EngineFullness
from disagg_exporter.fullness.paged import PagedFullness
from disagg_exporter.fullness.used import used_ratio
from disagg_exporter.model import (
    CapacitySource,
    EngineCapacity,
    EngineState,
    EngineStatus,
    Step,
    StreamKey,
)

_MOST_HELD = 10_000


@dataclass(slots=True)
class _Known:
    """What is known of one engine, by both sources; `model_name` is what it serves."""

    model_name: str
    steps: EngineFullness
    page: PagedFullness
    asleep: bool = False


class Fullness:
    """Every method takes the time it needs as an argument.

    Messages are only put aside as they come; the work is done once a second, in `advance`.

    Args:
        itl_seconds: The time from one token to the next that users are promised.
    """

    def __init__(self, itl_seconds: float) -> None:
        self._itl_seconds = itl_seconds
        self._engines: dict[str, _Known] = {}
        self._arrived: list[tuple[StreamKey, Step, bool, bool]] = []

    def step(self, key: StreamKey, step: Step, *, overlapped: bool) -> None:
        """Take one step record; of engines that `advance` has not heard of it is ignored."""
        self._arrived.append((key, step, overlapped, True))
        if len(self._arrived) > _MOST_HELD:
            self._digest()

    def hear(self, key: StreamKey, said: Step) -> None:
        """Take a hello or heartbeat."""
        self._arrived.append((key, said, False, False))

    def advance(self, engines: Iterable[EngineStatus], now_ns: int) -> None:
        """Learn from what has come, and see how full everyone is.

        An engine that is not among them any more, or serves another model, is forgotten.
        """
        here = {status.engine: status for status in engines}
        for name in self._engines.keys() - here.keys():
            del self._engines[name]
        for name, status in here.items():
            known = self._engines.get(name)
            if known is None or known.model_name != status.model_name:
                steps, page = EngineFullness(self._itl_seconds), PagedFullness(self._itl_seconds)
                self._engines[name] = known = _Known(status.model_name, steps, page)
            known.asleep = status.page is not None and bool(status.page.asleep)
            known.page.look(status.page, now_ns)
        self._digest()
        for known in self._engines.values():
            known.steps.advance(now_ns)

    def capacities(self, engines: Iterable[EngineStatus]) -> tuple[EngineCapacity, ...]:
        """Return how full engines are; one that is not ready, or asleep, has no ratio."""
        return tuple(
            _capacity(status, self._engines[status.engine])
            for status in engines
            if status.engine in self._engines
        )

    def _digest(self) -> None:
        arrived, self._arrived = self._arrived, []
        for key, step, overlapped, record in arrived:
            known = self._engines.get(key.engine)
            if known is not None:
                known.steps.take(key, step, overlapped=overlapped, record=record)


def _capacity(status: EngineStatus, known: _Known) -> EngineCapacity:
    source = CapacitySource.STEPS
    told: EngineFullness | PagedFullness = known.steps
    if known.steps.load is None and known.page.load is not None:
        source, told = CapacitySource.PAGE, known.page
    used = None
    if status.state is EngineState.READY and told.load is not None and not known.asleep:
        used = used_ratio(status.role, told.load, told.prefill, told.decode)
    return EngineCapacity(status.engine, used, told.prefill, told.decode, source)
