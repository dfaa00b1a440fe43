"""How numpy's linear algebra is kept from taking more of a machine than it gives."""

from __future__ import annotations

import numpy as np


def hold_buffer() -> None:
    """Let the library below numpy map its buffer now; it keeps it.

    OpenBLAS maps it at its first use (32 MiB of addresses, of which next to nothing is touched). If
    the host then has no memory to give, it writes so to standard error past all our queues and ends
    the process. Once mapped, one thread needs no more (`one_thread`).
    """
    np.linalg.solve(np.eye(2), np.ones(2))


def one_thread() -> None:
    """Let linear algebra run on the thread that asks, from now on.

    Systems of ours are small. On several threads they take no less time, and on a busy machine
    several times the CPU, because the threads wait for each other awake. A product on several
    threads takes memory each time, and ends the process where there is none.
    """
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
