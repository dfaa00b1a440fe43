"""A number of things in words."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return text like `1 engine` and `3 engines`; the plural of the noun takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def agreeing(number: int, one: str, several: str) -> str:
    """Return the word that goes with such a number of things, like `is` and `are`."""
    return one if number == 1 else several
