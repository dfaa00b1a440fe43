"""What a lane makes of records, beside their rows, until their time is frozen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from disagg_exporter.steps.rows import Rows

NO_GAP = -1
"""In `gap`: the entry says nothing of the time after it."""

MARK = np.dtype(
    [
        ("stream", np.int64),
        ("kind", np.int64),
        ("prefill_share", np.float64),
        ("dummy_share", np.float64),
        ("prefill_tokens", np.int64),
        ("decode_tokens", np.int64),
        ("gap", np.int64),
        ("pending", np.bool_),
        ("undivided", np.bool_),
        ("marker", np.bool_),
        ("begun", np.bool_),
        ("lost", np.int64),
        ("unheard", np.bool_),
    ]
)
"""What we make of a record, beside its row.

`pending`: work is left after it; `gap` is the code of the reason why its engine rests then.
`undivided`: its time is yet to be divided between the phases, its shares are provisional.
`marker`: no record, but a heartbeat that knows of a newer one than we do; it holds no time itself.
`lost`: how many missing records it stands for. Such an entry is made anew at each look, so that
the missing may still arrive, until it is `begun`: partly frozen, and what remains is its length.
`unheard`: they are missing because no daemon was there to receive them, not because they were lost.
"""

Marks = NDArray[np.void]
"""An array of `MARK`."""


class Tokens(NamedTuple):
    """Tokens of both phases that are in the books, and when their steps were told."""

    t_ns: NDArray[np.int64]
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]


class Spans(NamedTuple):
    """Entries in the order in which they were made, and how long a span each makes.

    `made_up`: some of them stand for lost records.
    """

    rows: Rows
    marks: Marks
    lengths_ns: NDArray[np.int64]
    made_up: bool = False
