"""A real VictoriaMetrics."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.children import free_port
from support.running_node import wait_for


@contextlib.contextmanager
def victoria_metrics(
    folder: Path, *flags: str, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a VictoriaMetrics until the block ends; yield its address and its process.

    Args:
        folder: The folder for data and log.
        flags: Further flags.
        tls: The client's context for checking that it is up, if the flags enable TLS.
    """
    program = shutil.which("victoria-metrics")
    if program is None:
        pytest.skip("victoria-metrics is not installed: apt-get install victoria-metrics")
    folder.mkdir(parents=True, exist_ok=True)
    listen = f"127.0.0.1:{free_port()}"
    url = f"http{'s' if tls else ''}://{listen}"
    argv = (
        program,
        f"-httpListenAddr={listen}",
        f"-storageDataPath={folder / 'data'}",
        "-retentionPeriod=60d",
        # Show new samples at once; the default delay is 30 s.
        "-search.latencyOffset=0s",
        *flags,
    )
    with (folder / "victoria-metrics.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            wait_for(lambda: _answers(f"{url}/health", tls), "VictoriaMetrics to answer", 60)
            yield url, process
        finally:
            process.kill()
            process.wait()


def _answers(url: str, tls: ssl.SSLContext | None) -> bool:
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=tls))
    with contextlib.suppress(OSError):
        urllib.request.build_opener(*handlers).open(url, timeout=5).close()
        return True
    return False
