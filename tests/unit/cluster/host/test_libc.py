from __future__ import annotations

import subprocess
import sys

import pytest

from disagg_cluster.host.libc import share_one_heap

HEAPS = """
import ctypes, threading
{first}
def allocate():
    held = [bytes(9000) for _ in range(99)]
    ready.wait()
    gone.wait()
ready, gone = threading.Barrier(5), threading.Event()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
ready.wait()
ctypes.CDLL(None).malloc_stats()
gone.set()
"""


def _heaps(first: str) -> int:
    script = HEAPS.format(first=first)
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return told.stderr.count("Arena ")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
def test_threads_share_one_heap() -> None:
    ours = "from disagg_cluster.host.libc import share_one_heap; share_one_heap()"

    assert _heaps(ours) == 1
    assert _heaps("pass") > 1


class OtherLibrary:
    """A C library without functions of glibc's own; it records what is looked up."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str) -> None:
        self.names.append(name)
        raise AttributeError(name)


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    library = OtherLibrary()
    monkeypatch.setattr("ctypes.CDLL", lambda _name: library)

    share_one_heap()

    assert library.names == ["mallopt"]
