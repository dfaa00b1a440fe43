"""What numpy's linear algebra needs of memory, had before anything is scarce."""

from __future__ import annotations

import numpy as np


def hold_buffer() -> None:
    """Let the library below numpy map its buffer now; it keeps it.

    OpenBLAS maps it at its first use (32 MiB of addresses, of which next to nothing is touched). If
    the host then has no memory to give, it writes so to standard error past all our queues and ends
    the process. Once mapped, small systems need no more.
    """
    np.linalg.solve(np.eye(2), np.ones(2))
