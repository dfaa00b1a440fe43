"""Detects user traffic on an engine, before it is probed and with each probe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disagg_cluster.tune.completion_server import ProbedEngine
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import EnginePage, Total

_RECHECK_SECONDS = 1.0
EXIT_REFUSED = 3


class LiveEngineError(DisaggError):
    """An engine that serves users is not probed unless requested."""

    exit_code = EXIT_REFUSED


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """An engine's request counters since its start; None if its page lacks one.

    `first_token_seconds` sums the times from a request's first step to its first token, by the
    engine's own clock. `ranks` is the number of data-parallel ranks that they are sums of.
    """

    steps: float | None = None
    first_token_requests: float | None = None
    first_token_seconds: float | None = None
    ranks: int = 1

    def since(self, before: EngineCounters) -> EngineCounters:
        """Return the difference to an earlier reading."""
        return EngineCounters(
            _difference(self.steps, before.steps),
            _difference(self.first_token_requests, before.first_token_requests),
            _difference(self.first_token_seconds, before.first_token_seconds),
            self.ranks,
        )

    @property
    def reports_steps(self) -> bool:
        """Whether it reports the number of steps and the time of prompts in them."""
        return None not in (self.steps, self.first_token_requests, self.first_token_seconds)


def counters_of(page: EnginePage | None) -> EngineCounters:
    """Return the counters of a page."""
    if page is None:
        return EngineCounters()
    totals = page.serving.totals
    return EngineCounters(
        page.steps_total,
        totals.get(Total.FIRST_TOKEN_REQUESTS),
        totals.get(Total.FIRST_TOKEN_SECONDS),
        page.ranks,
    )


def refuse_live(engine: ProbedEngine, sleep: Callable[[float], None]) -> None:
    """Check twice, a second apart, and refuse an engine that is working or does not report.

    `sleep` is called in between, as only the passing of time shows whether it generates tokens.

    Raises:
        LiveEngineError: It serves requests, served some meanwhile, or does not report them.
        EngineDownError: It does not answer.
    """
    before = engine.page()
    if before is None or before.running is None:
        raise LiveEngineError(
            "it has no metrics page by which to see whether it serves users; --live probes it "
            "all the same"
        )
    if seen := _at_work(before):
        raise _live(seen)
    sleep(_RECHECK_SECONDS)
    after = engine.page()
    if after is None:
        raise LiveEngineError("its metrics page has gone; --live probes it all the same")
    if seen := _at_work(after):
        raise _live(seen)
    wrote = _difference(after.generation_tokens_total, before.generation_tokens_total)
    if wrote:
        raise _live(f"it wrote {wrote:.0f} tokens within a second")


def refuse_others(page: EnginePage | None) -> None:
    """Refuse to continue if there are requests while none is ours.

    Raises:
        LiveEngineError: There are some.
    """
    if page is not None and (seen := _at_work(page)):
        raise LiveEngineError(
            f"requests of others have come ({seen}), and probing would hold them up; "
            "--live goes on all the same"
        )


def _live(seen: str) -> LiveEngineError:
    return LiveEngineError(
        f"it serves requests ({seen}), which probing would hold up: take it out of service "
        "first, or say --live"
    )


def _at_work(page: EnginePage) -> str:
    states = {"running": page.running, "waiting": page.waiting, "waiting for KV": page.deferred}
    return ", ".join(f"{count:.0f} {state}" for state, count in states.items() if count)


def _difference(after: float | None, before: float | None) -> float | None:
    if after is None or before is None:
        return None
    return after - before
