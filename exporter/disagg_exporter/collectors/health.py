"""The health of one collector: its rounds timed and counted, its failures logged when they change.

An exception in a round ends with the round. An expected one (`DisaggError`, `OSError`) is shown
with its text. Any other is a bug: it is shown by its type and where it was raised, never by its
text, which may quote the data it failed on, and that may be a secret.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from disagg_exporter.errors import DisaggError
from disagg_exporter.model import CollectorStatus


class CollectorHealth:
    """How the rounds of one collector go. Rounds run on one thread; any thread may read the result.

    Args:
        collector: Its name on the page.
        log: Logs when a failure begins, becomes another, and is over.
        subject: Prefix of the log lines; the collector's name if None.
        failing: What is put before each failure in the log.
        recovered: What is logged when a failure is over; nothing if empty.
        level: Level at which expected failures are logged.
        silent_failures: This many failures in a row are not logged, only shown.
        untried: The problem shown before the first round; if empty, it is healthy until it fails.
        clock_ns, wall: Nanoseconds, monotonic, and Unix seconds.
    """

    def __init__(
        self,
        collector: str,
        log: logging.Logger,
        *,
        subject: str | None = None,
        failing: str = "",
        recovered: str = "works again",
        level: int = logging.WARNING,
        silent_failures: int = 0,
        untried: str = "",
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.collector = collector
        self.failures = 0
        """Number of failed rounds in a row."""
        self.has_failed = False
        """Whether any round ever failed."""
        self.tried = False
        """Whether there was a round since the last `rest`."""
        self._log = log
        self._subject = collector if subject is None else subject
        self._failing = failing
        self._recovered = recovered
        self._level = level
        self._silent_failures = silent_failures
        self._clock_ns = clock_ns
        self._wall = wall
        self._problems: Mapping[str, str] = {"": untried} if untried else {}
        self._logged: Mapping[str, str] = self._problems
        self._unexpected = 0
        self._defects: set[str] = set()
        self._seconds = 0.0
        self._success_wall: float | None = None

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self._problems

    @property
    def why(self) -> str:
        """The problems as text; empty if there are none."""
        return "; ".join(self._problems.values())

    @property
    def problems(self) -> tuple[str, ...]:
        """All problems, one line each."""
        return tuple(self._problems.values())

    def status(self) -> CollectorStatus:
        """Return the collector as the page shows it."""
        return CollectorStatus(
            self.collector, self.ok, self._seconds, self._success_wall, self._unexpected
        )

    @contextlib.contextmanager
    def round(self) -> Iterator[dict[str, str]]:
        """Time one round; an exception fails it and is not propagated.

        Yields the round's problems, to be filled in by subject; a round without problems has
        succeeded.
        """
        began_ns, problems = self._clock_ns(), dict[str, str]()
        try:
            yield problems
        except Exception as error:  # noqa: BLE001 - the one guard of all collectors
            self.fail(error, self._seconds_since(began_ns))
        else:
            self.report(problems, self._seconds_since(began_ns))

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Guard work between two rounds: an exception fails the collector and is not propagated."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)

    def succeed(self, seconds: float | None = None) -> None:
        """Record a successful round and its duration."""
        self.report({}, seconds)

    def fail(self, cause: Exception | str, seconds: float | None = None) -> None:
        """Record why a round failed; the same cause as before is not logged again."""
        if isinstance(cause, str):
            self.report({"": cause}, seconds)
            return
        error = _innermost(cause)
        why = explain(error)
        same = error.cause if isinstance(error, DisaggError) else why
        if not is_foreseen(error):
            self.record_defect(error)
            self._logged = {"": same}
        self._settle({"": why}, {"": same}, seconds)

    def record_defect(self, cause: Exception) -> None:
        """Count an unexpected failure, and log where it was raised, once until all is well.

        For callers that report it as one of several problems; `fail` does both.
        """
        error = _innermost(cause)
        why = explain(error)
        self._unexpected += 1
        if why in self._defects:
            return
        self._defects.add(why)
        said = f"{self._subject}: {self._failing}{why}"
        self._log.error("%s\n%s", said, _frames(error))
        self._log.debug("%s failed", self._subject, exc_info=error)

    def report(self, problems: Mapping[str, str], seconds: float | None = None) -> None:
        """Record a round's result: its problems, by subject."""
        self._settle(problems, problems, seconds)

    def _settle(
        self, problems: Mapping[str, str], causes: Mapping[str, str], seconds: float | None
    ) -> None:
        if seconds is not None:
            self._seconds = seconds
        self._problems, self.tried = problems, True
        if not problems:
            self.failures = 0
            self._success_wall = self._wall()
            if self._logged and self._recovered:
                self._log.info("%s: %s", self._subject, self._recovered)
            self._logged = {}
            self._defects.clear()
            return
        self.failures += 1
        self.has_failed = True
        if self.failures <= self._silent_failures and not self._logged:
            return
        for key, problem in problems.items():
            if self._logged.get(key) != causes[key]:
                self._log.log(self._level, "%s: %s%s", self._subject, self._failing, problem)
        self._logged = causes

    def rest(self) -> None:
        """Record that there is nothing to collect for now, and forget how earlier rounds went."""
        self.failures, self.tried = 0, False
        self._problems, self._success_wall = {}, None

    def _seconds_since(self, began_ns: int) -> float:
        return (self._clock_ns() - began_ns) / 1e9


def is_foreseen(error: Exception) -> bool:
    """Return whether an error comes from the environment rather than from a bug."""
    return isinstance(_innermost(error), (DisaggError, OSError))


def explain(error: Exception) -> str:
    """Return the part of an error's text that is safe to show."""
    error = _innermost(error)
    if isinstance(error, DisaggError):
        return str(error)
    if isinstance(error, OSError):
        # Some that Python raises itself have no system text, and are not bugs either.
        return error.strerror or f"it fails with {type(error).__name__}"
    return f"it fails with {type(error).__name__} (see --verbose); please report it"


def _frames(error: Exception) -> str:
    """Return where it was raised, without source lines or values, which may be secrets."""
    frames = traceback.extract_tb(error.__traceback__)
    return "\n".join(f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


_MOST_REMEMBERED = 1024


class FailureCounts:
    """Sums over all collectors of a kind, such as `engine`, including removed ones.

    A collector leaves the page with its engine; a counter that left with it would decrease.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._remembered: dict[str, int] = {}

    def ingest(self, statuses: Iterable[CollectorStatus]) -> Mapping[str, int]:
        """Add what is new since the last call; return the sums by kind."""
        for status in statuses:
            name, failures = status.collector, status.unexpected_failures
            before = self._remembered.get(name, 0)
            # A lower count than before means a new collector under the same name.
            self._counts[name.partition(":")[0]] += failures - before * (failures >= before)
            if failures or before:
                self._remembered[name] = failures
        while len(self._remembered) > _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return dict(self._counts)
