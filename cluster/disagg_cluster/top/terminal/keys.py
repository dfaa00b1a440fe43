"""Decodes the bytes from a terminal into keys."""

from __future__ import annotations

from collections.abc import Iterator

_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "[5~": "pageup",
    "[6~": "pagedown",
}
_SINGLE = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "interrupt",
}
_ESCAPE = "\x1b"
_LONGEST = 16


def keys_of(data: bytes) -> Iterator[str]:
    """The keys in one read; unknown escape sequences are skipped."""
    text = data.decode(errors="ignore")
    while text:
        if text[0] != _ESCAPE:
            yield _SINGLE.get(text[0], text[0])
            text = text[1:]
            continue
        length = _sequence_length(text)
        if length == 1:
            yield "escape"
        elif (key := _SEQUENCES.get(text[1:length])) is not None:
            yield key
        text = text[length:]


def _sequence_length(text: str) -> int:
    """Length of the escape sequence at the start of a text; 1 for the Escape key alone."""
    if len(text) < 2 or text[1] not in "[O":
        return 1
    if text[1] == "O":
        return min(3, len(text))
    for place, each in enumerate(text[2:_LONGEST], 2):
        if "@" <= each <= "~":
            return place + 1
    return len(text)
