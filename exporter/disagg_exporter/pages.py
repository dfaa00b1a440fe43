"""An engine's metrics page: its text to the few values we use, and two pages to what happened.

Only the lines that matter are parsed: a page holds some 800 samples and we want nine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from prometheus_client.parser import text_string_to_metric_families

from disagg_exporter.engine_series import ADAPTERS, Adapter, Field, Series
from disagg_exporter.errors import DisaggError
from disagg_exporter.model import EnginePage

# What a page may make us work. A rank has ten wanted lines of some 80 bytes, so this is room for
# hundreds of ranks; the parser's time grows with the square of a line.
MAX_WANTED_BYTES = 512 * 1024
MAX_LINE_BYTES = 4096

# More than this is no count of anything, and sums of such numbers overflow.
_LARGEST = 2.0**63

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class PageError(DisaggError):
    """A page that cannot be believed; its text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """What an engine did between two of its pages; None where either page does not tell.

    With `reset` (the engine began anew in between) the tokens are those since then, so the
    rates are lower bounds.
    """

    kind: str
    start_ns: int
    end_ns: int
    reset: bool
    computed_tokens: float | None
    external_tokens: float | None
    generation_tokens: float | None

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def tokens_advanced(self) -> bool:
        """Whether any token was computed between the pages."""
        rates = (self.computed_tokens_per_second, self.generation_tokens_per_second)
        return any(rate is not None and rate > 0 for rate in rates)

    @property
    def computed_tokens_per_second(self) -> float | None:
        """Prompt tokens computed here: prefill work."""
        return None if self.computed_tokens is None else self.computed_tokens / self.seconds

    @property
    def external_tokens_per_second(self) -> float | None:
        """Prompt tokens whose KV came from another engine."""
        return None if self.external_tokens is None else self.external_tokens / self.seconds

    @property
    def generation_tokens_per_second(self) -> float | None:
        """Tokens generated: decode work."""
        return None if self.generation_tokens is None else self.generation_tokens / self.seconds


def parse_page(text: bytes, t_ns: int) -> EnginePage:
    """Read an engine's page, whichever kind of engine it is.

    Ranks and engine indexes are summed (the KV use averaged: ranks have equal caches). A gauge
    that is not a number from 0 up is absent.

    Raises:
        PageError: The page is no page of a known engine, is cut off, holds garbage among the
            lines we need, a sample twice, or a counter that is not a number from 0 up.
    """
    if text.lstrip()[:1] == b"<":
        raise PageError("this is an HTML page, not a metrics page")
    if not text.endswith(b"\n"):
        raise PageError("the page is cut off: its last line has no end")
    for adapter in ADAPTERS:
        if samples := _samples(text, adapter):
            return _page(adapter, samples, t_ns)
    kinds = ", ".join(adapter.kind for adapter in ADAPTERS)
    raise PageError(f"no series of a known engine on the page (known: {kinds})")


def window(before: EnginePage, after: EnginePage) -> EngineWindow:
    """Return what happened between two pages of one engine.

    Raises:
        PageError: The pages are of different kinds, or not in order of time.
    """
    if before.kind != after.kind:
        raise PageError(f"two pages of different engines: {before.kind} and {after.kind}")
    if after.t_ns <= before.t_ns:
        raise PageError("the second page is not later than the first")
    pairs = (
        (before.computed_tokens_total, after.computed_tokens_total),
        (before.external_tokens_total, after.external_tokens_total),
        (before.generation_tokens_total, after.generation_tokens_total),
    )
    # One counter that fell means a new process, so the others began at 0 as well.
    reset = before.model_name != after.model_name or any(
        old is not None and new is not None and new < old for old, new in pairs
    )
    deltas = (
        None if old is None or new is None else new - (0.0 if reset else old) for old, new in pairs
    )
    return EngineWindow(after.kind, before.t_ns, after.t_ns, reset, *deltas)


def _samples(text: bytes, adapter: Adapter) -> Samples:
    """Return the wanted samples of a page under their bare names."""
    samples: Samples = {}
    try:
        wanted = b"\n".join(_wanted_lines(text, adapter)).decode("utf-8")
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                if sample.name not in adapter.names:
                    raise ValueError(sample.name)
                key = (adapter.bare_name(sample.name), tuple(sorted(sample.labels.items())))
                if key in samples:
                    raise PageError(f"{sample.name} is on the page twice with the same labels")
                samples[key] = float(sample.value)
    except UnicodeDecodeError:
        raise PageError(f"a line of the {adapter.kind} series is not UTF-8") from None
    except (ValueError, IndexError, OverflowError) as error:
        # What the client's parser throws at malformed lines, and float() at endless digits.
        why = ascii(str(error))[:160]
        raise PageError(f"a line of the {adapter.kind} series cannot be read: {why}") from error
    return samples


def _wanted_lines(text: bytes, adapter: Adapter) -> Iterator[bytes]:
    names = frozenset(name.encode() for name in adapter.names)
    starts, total = tuple(names), 0
    for line in text.split(b"\n"):
        # The cheap question first: a page has some 800 lines and most answer no.
        if not line.startswith(starts) or line.split(b"{", 1)[0].split(None, 1)[0] not in names:
            continue
        total += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise PageError(f"a line is longer than {MAX_LINE_BYTES} bytes")
        if total > MAX_WANTED_BYTES:
            raise PageError(f"the lines we need are more than {MAX_WANTED_BYTES} bytes together")
        yield line


def _page(adapter: Adapter, samples: Samples, t_ns: int) -> EnginePage:
    values = {field: _value(field, adapter, samples) for field in Field}
    models = {value for _, labels in samples for label, value in labels if label == "model_name"}
    return EnginePage(
        kind=adapter.kind,
        t_ns=t_ns,
        # Several models on one page are nobody's name.
        model_name=models.pop() if len(models) == 1 else None,
        running=values[Field.RUNNING],
        waiting=values[Field.WAITING],
        deferred=values[Field.DEFERRED],
        kv_usage_ratio=values[Field.KV_USAGE_RATIO],
        computed_tokens_total=values[Field.COMPUTED_TOKENS_TOTAL],
        external_tokens_total=values[Field.EXTERNAL_TOKENS_TOTAL],
        generation_tokens_total=values[Field.GENERATION_TOKENS_TOTAL],
    )


def _value(field: Field, adapter: Adapter, samples: Samples) -> float | None:
    for series in (series for series in adapter.series if series.field is field):
        values = _matching(series, samples)
        if not values:
            continue
        bad = [value for value in values if not 0 <= value <= _LARGEST]
        if bad and field.counter:
            raise PageError(f"{series.name} is {bad[0]}, which no count can be")
        total = fmean(values) if field is Field.KV_USAGE_RATIO else math.fsum(values)
        return None if bad or (field is Field.KV_USAGE_RATIO and total > 1) else total
    return None


def _matching(series: Series, samples: Samples) -> list[float]:
    return [
        value
        for (name, labels), value in samples.items()
        if name == series.name and (series.label is None or series.label in labels)
    ]
