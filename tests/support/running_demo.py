"""`disagg-node demo` as a user runs it: stand-in engines, real daemon, real Prometheus."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading

from support.running_node import DISAGG_NODE, wait_for

_SECONDS = 90.0


class RunningDemo:
    """A running demo: its stderr is read for addresses, its stdout for a line a second."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*DISAGG_NODE, "demo", "--json", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, object]] = []
        self.said = ""
        self._readers = [
            threading.Thread(target=self._read_lines),
            threading.Thread(target=self._read_log),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def address(self, pattern: str) -> str:
        """Wait for an address in what the demo says on stderr."""
        return wait_for(lambda: re.search(pattern, self.said), pattern, _SECONDS).group(1)

    def page_url(self) -> str:
        """Return the address of its metrics page."""
        return self.address(r"metrics page: (\S+)")

    def prometheus_url(self) -> str:
        """Return the address of its Prometheus."""
        return self.address(r"Prometheus: (\S+)")

    def end(self, by: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C or another signal; return the exit code."""
        self.process.send_signal(by)
        code = self.process.wait(_SECONDS)
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return code
