"""Sums of models that nobody has served for long: they keep their place in the books, unnamed.

Names of models are labels, and engines choose them. A device's cells sum to its time, so nothing
may be taken out of them; what has lost its name is in the device's sums and in none of a model's.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from disagg_exporter.model import FORGOTTEN_MODEL, ActivityCell, Cell

_Key = TypeVar("_Key", Cell, ActivityCell)


def fold(sums: Counter[_Key] | None, model_name: str) -> None:
    """Take a model's name off its sums."""
    for key in [key for key in sums or () if key.model_name == model_name]:
        assert sums is not None
        unnamed = key._replace(model_name=FORGOTTEN_MODEL, engine_namespace="")
        sums[unnamed] += sums.pop(key)
