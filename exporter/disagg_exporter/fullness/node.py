"""The engines of a node: their messages in, how full each is out."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_exporter.fullness.engine import EngineFullness
from disagg_exporter.fullness.used import used_ratio
from disagg_exporter.model import EngineCapacity, EngineState, EngineStatus, Step, StreamKey

_MOST_HELD = 10_000


class Fullness:
    """Every method takes the time it needs as an argument.

    Messages are only put aside as they come; the work is done once a second, in `advance`.

    Args:
        itl_seconds: The time from one token to the next that users are promised.
    """

    def __init__(self, itl_seconds: float) -> None:
        self._itl_seconds = itl_seconds
        self._engines: dict[str, EngineFullness] = {}
        self._arrived: list[tuple[StreamKey, Step, bool, bool]] = []

    def step(self, key: StreamKey, step: Step, *, overlapped: bool) -> None:
        """Take one step record."""
        self._arrived.append((key, step, overlapped, True))
        if len(self._arrived) > _MOST_HELD:
            self._digest()

    def hear(self, key: StreamKey, said: Step) -> None:
        """Take a hello or heartbeat."""
        self._arrived.append((key, said, False, False))

    def advance(self, now_ns: int) -> None:
        """Learn from what has come, and see how full everyone is."""
        self._digest()
        for engine in self._engines.values():
            engine.advance(now_ns)

    def forget(self, engine: str) -> None:
        """Forget what was learned of an engine: it serves something else now."""
        self._engines.pop(engine, None)

    def capacities(self, engines: Iterable[EngineStatus]) -> tuple[EngineCapacity, ...]:
        """Return how full the engines are that have told anything; only ready ones have a ratio."""
        return tuple(
            self._capacity(status, self._engines[status.engine])
            for status in engines
            if status.engine in self._engines
        )

    def _capacity(self, status: EngineStatus, known: EngineFullness) -> EngineCapacity:
        used = None
        if status.state is EngineState.READY and known.load is not None:
            used = used_ratio(status.role, known.load, known.prefill, known.decode)
        return EngineCapacity(status.engine, used, known.prefill, known.decode)

    def _digest(self) -> None:
        arrived, self._arrived = self._arrived, []
        for key, step, overlapped, record in arrived:
            engine = self._engines.get(key.engine)
            if engine is None:
                engine = self._engines[key.engine] = EngineFullness(self._itl_seconds)
            engine.take(key, step, overlapped=overlapped, record=record)
