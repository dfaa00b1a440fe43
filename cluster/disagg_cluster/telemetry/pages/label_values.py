"""Texts that engines choose, as label values: a few per engine, so that none fills the page.

Each new value of a label is a new series for every Prometheus that scrapes us. An engine may change
its text, and be restarted as something else; it may not invent a name every second. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice, takewhile

PER_ENGINE = 8
"""How many values an engine may have had within `UNUSED_NS`."""
UNUSED_NS = 3600 * 1_000_000_000
"""A value unused for this long no longer counts against its engine."""
KEPT_VALUES = 64
"""Unused values beyond this number are forgotten altogether."""
MAX_ENGINES = 1024


class LabelValues:
    """The values of one label, by engine, and when each was last used.

    Args:
        max_characters: The maximum length of a value; the rest is cut off.
    """

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._by_engine: OrderedDict[str, dict[str, int]] = OrderedDict()
        self._used_ns: OrderedDict[str, int] = OrderedDict()

    def label(self, engine: str, text: str, now_ns: int) -> str | None:
        """Return an engine's text as a label value; None if that engine has had too many.

        To be called at each scrape: a value that is not requested counts as unused.
        """
        value = "".join(c for c in text[: self._max_characters] if c.isprintable())
        if not value:
            return value
        own = self._own(engine, now_ns)
        if value not in own and len(own) >= PER_ENGINE:
            return None
        own[value] = self._used_ns[value] = now_ns
        self._used_ns.move_to_end(value)
        return value

    def forget_unused(self, now_ns: int) -> tuple[str, ...]:
        """Forget surplus values that have long been unused; return which."""
        surplus = max(len(self._used_ns) - KEPT_VALUES, 0)
        oldest = takewhile(lambda used: now_ns - used[1] >= UNUSED_NS, self._used_ns.items())
        forgotten = [value for value, _ in islice(oldest, surplus)]
        for value in forgotten:
            del self._used_ns[value]
        return tuple(forgotten)

    def _own(self, engine: str, now_ns: int) -> dict[str, int]:
        """Return the values that an engine has used recently."""
        own = self._by_engine.pop(engine, {})
        own = {value: used_ns for value, used_ns in own.items() if now_ns - used_ns < UNUSED_NS}
        self._by_engine[engine] = own
        while len(self._by_engine) > MAX_ENGINES:
            self._by_engine.popitem(last=False)
        return own
