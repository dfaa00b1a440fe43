"""The few lines of a metrics page that its engine's role may be known from.

A page has a thousand lines and is read every second: what can be left to the searching of bytes is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from disagg_exporter.roles.evidence.page import (
    ENGINE_PREFIXES,
    FETCH_STAGE,
    MAX_LINE_CHARS,
    NAME_LABELS,
    ROUTER_PREFIXES,
    TOTALS,
)

MAX_BYTES = 2 * 1024 * 1024
MAX_OF_A_SORT = 64

_STARTS = tuple(prefix.encode() for prefix in (*ENGINE_PREFIXES, *ROUTER_PREFIXES))
_RAY = b"\nray_"
_NAMES = tuple(name.encode() for name in (FETCH_STAGE, *TOTALS))
# Labels are written in the order of the alphabet, so these two stand side by side.
_LABELS = (
    (b'dynamo_component="', re.compile(rb'dynamo_component="[^"]*"(?:,dynamo_endpoint="[^"]*")?')),
    *(
        (f'{label}="'.encode(), re.compile(rb'\b%s="[^"]*"' % label.encode()))
        for label in ("engine_type", "deployment", *NAME_LABELS)
    ),
)


def telling_lines(page: bytes) -> tuple[str, ...]:
    """Return the lines that matter, each once; `page_claims` says the same of them as of all."""
    text = b"\n" + page[:MAX_BYTES]
    found = dict.fromkeys((*_first_of_each(text), *_named(text), *_labelled(text)))
    return tuple(line.decode(errors="replace") for line in found)


def _first_of_each(text: bytes) -> Iterator[bytes]:
    for before in (b"\n", _RAY) if _RAY in text else (b"\n",):
        for start in _STARTS:
            at = text.find(before + start)
            if at >= 0:
                yield from _sample(text, at + 1)


def _named(text: bytes) -> Iterator[bytes]:
    for name in _NAMES:
        at = -1
        for _ in range(MAX_OF_A_SORT):
            at = text.find(name, at + 1)
            if at < 0:
                break
            yield from _sample(text, at)


def _labelled(text: bytes) -> Iterator[bytes]:
    for start, pattern in _LABELS:
        if start not in text:
            continue
        for said in sorted(set(pattern.findall(text)))[:MAX_OF_A_SORT]:
            yield from _sample(text, text.find(said))


def _sample(text: bytes, at: int) -> Iterator[bytes]:
    """The line around a place, unless it is a comment or longer than any honest one."""
    begin = text.rfind(b"\n", 0, at + 1) + 1
    end = text.find(b"\n", at)
    line = text[begin : end if end >= 0 else len(text)]
    if line and not line.startswith(b"#") and len(line) <= MAX_LINE_CHARS:
        yield line
