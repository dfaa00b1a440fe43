from __future__ import annotations

import subprocess
import sys

import pytest

_SOLVES = """
import resource
import numpy as np
from disagg_cluster.host.linear_algebra import hold_buffer, one_thread
{before}
many = np.ones((20_000, 12))
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 64 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
print(np.linalg.solve(np.eye(3), np.ones(3))[0])
print((many.T @ many)[0, 0])
"""


def _solve_without_memory(before: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", _SOLVES.format(before=before)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_process_without_memory_still_solves_small_systems() -> None:
    """Without the buffer OpenBLAS ends the process; with it, a threaded product still does."""
    held = _solve_without_memory("one_thread(); hold_buffer()")

    assert (held.returncode, held.stdout) == (0, "1.0\n20000.0\n"), held.stderr


def test_linear_algebra_stays_on_the_calling_thread() -> None:
    script = (
        "from disagg_cluster.host.linear_algebra import one_thread\n"
        "from threadpoolctl import threadpool_info\n"
        "one_thread()\n"
        "print({pool['num_threads'] for pool in threadpool_info()})"
    )
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (0, "{1}\n"), done.stderr
