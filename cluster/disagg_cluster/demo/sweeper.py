"""Ends what a demo has started if the demo itself was killed and could not.

A process beside the demo, `python -m disagg_cluster.demo.sweeper FOLDER`. The demo holds the other
end of its standard input; however the demo ends, the kernel closes that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from disagg_cluster.host.processes.process_traits import mark_of, own_processes, stdout_path

_POLL_SECONDS = 0.05
_MOST_LOOKS = 200


@contextmanager
def swept(folder: Path) -> Iterator[None]:
    """Ensure that processes writing into a demo's folder end with us, and the folder is removed.

    Args:
        folder: The demo's own, without links.
    """
    argv = [sys.executable, "-m", "disagg_cluster.demo.sweeper", str(folder)]
    quiet = subprocess.DEVNULL
    # A separate session: a signal to the demo's terminal or group must not end this, too.
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    ):
        yield


def belonging_to(folder: Path) -> list[int]:
    """Return our user's processes whose output, or whose worker's log, is in a demo's folder."""
    inside = f"{folder}{os.sep}"
    return [
        pid
        for pid in own_processes()
        if stdout_path(pid).startswith(inside) or mark_of(pid).startswith(inside)
    ]


def sweep(folder: Path) -> None:
    """Kill what belongs to a demo's folder until nothing is left, and remove the folder."""
    tick = Event()
    for _ in range(_MOST_LOOKS):
        found = belonging_to(folder)
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            break
        tick.wait(_POLL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Wait until the demo is over, then sweep."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
