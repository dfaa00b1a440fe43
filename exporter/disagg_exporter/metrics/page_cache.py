"""The metrics page as bytes: rendered on request after a change, and then cached."""

from __future__ import annotations

import gzip
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder
from prometheus_client.utils import floatToGoString

from disagg_exporter.metrics.family import Family, Labels, MetricRows, MetricType
from disagg_exporter.metrics.table import FAMILIES
from disagg_exporter.model import Histogram

# The library has no types.
_go_number: Callable[[float], str] = floatToGoString
# From here on Go writes an exponent, and Python does not.
_GO_EXPONENT = 1e6


def _number(value: float) -> str:
    """Return a value as the library writes it, which takes up to twice as long."""
    return repr(float(value)) if -_GO_EXPONENT < value < _GO_EXPONENT else _go_number(value)


class _Lines:
    """The lines of some rows; only those whose values have changed are written anew.

    A zero that only changes its sign has not.

    Args:
        beginnings: Each line up to its value; they end in a space.
    """

    def __init__(self, beginnings: Iterable[str]) -> None:
        self._lines = list(beginnings)
        self._values: Sequence[float] = [math.nan] * len(self._lines)

    def write(self, values: Sequence[float]) -> list[str]:
        """Return the lines with these values; the list is changed by the next call."""
        lines = self._lines
        for row, (value, before) in enumerate(zip(values, self._values, strict=True)):
            if value != before:
                lines[row] = f"{_beginning_of(lines[row])}{_number(value)}\n"
        self._values = values
        return lines

    def beginnings(self) -> Iterator[str]:
        """Yield each line up to its value."""
        return map(_beginning_of, self._lines)


def _beginning_of(line: str) -> str:
    return line[: line.rindex(" ") + 1]


class PageText:
    """Writes rows as text, byte for byte what the client library writes for the same rows.

    A node has some thousand rows and is scraped every second: the library takes 25 µs a row, most
    of it for labels that are the same on every page. Lines are cached from one page to the next.

    Args:
        dots: Names are written in the escaping scheme `dots`, which doubles underscores.
    """

    def __init__(self, *, dots: bool = False) -> None:
        self._underscore = "__" if dots else "_"
        self._heads = [
            {family.name: self._head(family, openmetrics) for family in FAMILIES}
            for openmetrics in (False, True)
        ]
        self._rows: dict[str, tuple[list[Labels], _Lines]] = {}
        self._histograms: dict[tuple[str, Labels, tuple[float, ...]], _Lines] = {}

    def write(self, rows: MetricRows, *, openmetrics: bool) -> bytes:
        """Return the page as OpenMetrics 1.0.0, or else as Prometheus text 0.0.4."""
        parts: list[str] = []
        heads = self._heads[openmetrics]
        for family in FAMILIES:
            if samples := rows.samples.get(family.name):
                parts.append(heads[family.name])
                parts += self._write_rows(family, samples)
            elif histograms := rows.histograms.get(family.name):
                parts.append(heads[family.name])
                for labels, histogram in histograms.items():
                    parts += self._write_histogram(family, labels, histogram)
        if openmetrics:
            parts.append("# EOF\n")
        # A lone surrogate (an odd file name) must not fail the whole page.
        return "".join(parts).encode("utf-8", "replace")

    def _write_rows(self, family: Family, rows: dict[Labels, float]) -> list[str]:
        labels_before, lines = self._rows.get(family.name, ([], _Lines(())))
        # Most pages have the rows of the one before: comparing all labels is cheaper than to look
        # up each.
        if (labels := list(rows)) != labels_before:
            known = dict(zip(labels_before, lines.beginnings(), strict=True))
            lines = _Lines(known.get(each) or self._row_beginning(family, each) for each in labels)
            self._rows[family.name] = labels, lines
        return lines.write(list(rows.values()))

    def _row_beginning(self, family: Family, labels: Labels) -> str:
        return self._beginning(family.name, zip(family.labels, labels, strict=True))

    def _name(self, name: str) -> str:
        return name.replace("_", self._underscore)

    def _head(self, family: Family, openmetrics: bool) -> str:
        name, kind = family.name, str(family.kind)
        if openmetrics:
            name = name.removesuffix("_total").removesuffix("_info")
        elif family.kind is MetricType.INFO:
            kind = "gauge"
        name = self._name(name)
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        if openmetrics:
            text = text.replace('"', r"\"")
        unit = f"# UNIT {name} {family.unit}\n" if openmetrics and family.unit else ""
        return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{unit}"

    def _beginning(self, name: str, labels: Iterable[tuple[str, str]]) -> str:
        pairs = ",".join(
            f'{self._name(label)}="{_escaped(value)}"' for label, value in sorted(labels)
        )
        return f"{self._name(name)}{{{pairs}}} " if pairs else f"{self._name(name)} "

    def _write_histogram(self, family: Family, labels: Labels, histogram: Histogram) -> list[str]:
        key = (family.name, labels, histogram.bounds)
        lines = self._histograms.get(key)
        if lines is None:
            if len(self._histograms) >= _HISTOGRAMS:
                self._histograms.clear()
            beginnings = self._histogram_beginnings(*key, family.labels)
            lines = self._histograms[key] = _Lines(beginnings)
        return lines.write((*histogram.counts, histogram.counts[-1], histogram.sum))

    def _histogram_beginnings(
        self, name: str, labels: Labels, bounds: tuple[float, ...], names: tuple[str, ...]
    ) -> tuple[str, ...]:
        own = list(zip(names, labels, strict=True))
        buckets = (
            self._beginning(f"{name}_bucket", [*own, ("le", bound)])
            for bound in (*map(_number, bounds), "+Inf")
        )
        ends = (self._beginning(f"{name}_{suffix}", own) for suffix in ("count", "sum"))
        return (*buckets, *ends)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# Histograms whose lines are cached: about four per engine and model.
_HISTOGRAMS = 1024
# Most cached variants of one page (format, compression); clients use about four.
_VARIANTS = 16
# How long a rendering is served.
_SERVED_NS = 200_000_000
_VERSIONS = ("0.0.4", "1.0.0")


@dataclass(frozen=True, slots=True)
class PageBytes:
    """One variant of the page, ready to send."""

    content_type: str
    body: bytes
    gzipped: bool


class Dated(Protocol):
    """The page's source data, with the time until which it is valid."""

    @property
    def fresh_until_ns(self) -> int:
        """On the clock of the page."""


Shown = TypeVar("Shown", bound=Dated)


class PageCache(Generic[Shown]):
    """Renders the page at most five times a second, however many clients ask.

    Args:
        latest: Returns the data to show, at once; None before there is any.
        rows_of: Makes its rows, for a time of the clock.
        now_ns: The clock.
    """

    def __init__(
        self,
        latest: Callable[[], Shown | None],
        rows_of: Callable[[Shown | None, int], MetricRows],
        now_ns: Callable[[], int],
    ) -> None:
        self._latest = latest
        self._rows_of = rows_of
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._rendered_ns: int | None = None
        self._shown: Shown | None = None
        self._fresh = False
        self._rows = MetricRows()
        self._text, self._dots_text = PageText(), PageText(dots=True)
        self._pages: dict[tuple[str, bool], PageBytes] = {}

    def page(self, accept: str, *, gzipped: bool) -> PageBytes:
        """Return the page in the format an Accept header asks for, else as plain text 0.0.4."""
        content_type = _content_type(accept)
        with self._lock:
            self._renew()
            key = (content_type, gzipped)
            if key not in self._pages:
                if len(self._pages) >= _VARIANTS:
                    self._pages.clear()
                self._pages[key] = self._render_variant(content_type, gzipped)
            return self._pages[key]

    def _renew(self) -> None:
        now_ns, latest = self._now_ns(), self._latest()
        fresh = latest is not None and now_ns <= latest.fresh_until_ns
        if self._rendered_ns is not None:
            if latest is self._shown and fresh == self._fresh:
                return
            if now_ns - self._rendered_ns < _SERVED_NS:
                return
        self._rows = self._rows_of(latest, now_ns)
        self._rendered_ns, self._shown, self._fresh = now_ns, latest, fresh
        self._pages.clear()

    def _render_variant(self, content_type: str, gzipped: bool) -> PageBytes:
        plain_key = (content_type, False)
        if gzipped and plain_key in self._pages:
            body = self._pages[plain_key].body
        else:
            text = self._dots_text if content_type.endswith("=dots") else self._text
            body = text.write(self._rows, openmetrics="openmetrics" in content_type)
        if gzipped:
            # Level 1 takes a third of the default's time for a page a fifth larger.
            body = gzip.compress(body, compresslevel=1, mtime=0)
        return PageBytes(content_type, body, gzipped)


def _content_type(accept: str) -> str:
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # how the client library fails at a version like "1.x"
        return CONTENT_TYPE_PLAIN_0_0_4
    # It copies any requested version into its answer; only existing ones are returned here.
    known = any(f"; version={version};" in content_type for version in _VERSIONS)
    return content_type if known else CONTENT_TYPE_PLAIN_0_0_4
