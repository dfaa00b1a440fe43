"""The engines of the daemon before, from when its accounting is resumed until they are back."""

from __future__ import annotations

from disagg_exporter.model import Assignment, EngineState


class AwaitedEngines:
    """Which engines are awaited, and since when."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        self._found: set[str] = set()

    @property
    def missing(self) -> frozenset[str]:
        """Those that nobody has told of."""
        return frozenset(self._since_ns.keys() - self._found)

    def expect(self, engine: str, since_ns: int) -> None:
        """Await an engine."""
        self._since_ns[engine] = since_ns

    def finds(self, known: Assignment, now: Assignment) -> bool:
        """Say whether an engine has merely been found again, as what it was known to be.

        Until it has answered, nothing is known of it that was not known before.
        """
        engine = now.engine
        if engine not in self._since_ns or now.state is not EngineState.STARTING:
            return False
        if now.pids != known.pids or known.state is EngineState.GONE:
            return False
        self._found.add(engine)
        return True

    def come(self, known: Assignment, now: Assignment) -> int | None:
        """Take that an engine is told of; return since when its process of before has been gone.

        None if that has not gone, or was gone already.
        """
        since_ns = self.drop(now.engine)
        stays = now.pids == known.pids or known.state is EngineState.GONE
        return None if stays else since_ns

    def drop(self, engine: str) -> int | None:
        """Await an engine no longer; return since when it was awaited."""
        self._found.discard(engine)
        return self._since_ns.pop(engine, None)
