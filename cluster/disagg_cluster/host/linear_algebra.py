"""Keeps numpy's linear algebra from using more of a machine than it is worth."""

from __future__ import annotations

import numpy as np


def hold_buffer() -> None:
    """Make the library below numpy map its buffer now, which it keeps.

    OpenBLAS maps it at its first use (32 MiB of addresses, hardly any of it touched). If the host
    has no memory left then, it writes so to standard error past all our queues and ends the
    process. Once mapped, one thread needs no more (`one_thread`).
    """
    np.linalg.solve(np.eye(2), np.ones(2))


def one_thread() -> None:
    """Run linear algebra on the calling thread only, from now on.

    Our systems are small. Several threads are no faster, and on a busy machine they take several
    times the CPU, because they wait for each other by spinning. A product on several threads also
    allocates memory each time, and ends the process where there is none.
    """
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
