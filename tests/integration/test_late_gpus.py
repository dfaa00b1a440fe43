"""GPUs that can be read only after the daemon has started, as after a boot: by a dcgm-exporter."""

from __future__ import annotations

import threading
from pathlib import Path

from support.children import free_port
from support.page_server import NoPage, page_server
from support.running_node import Page, running_node, wait_for

PAGE = Path(__file__).parents[1] / "data" / "dcgm-exporter" / "two-gpus.prom"


def test_a_daemon_that_finds_engines_reads_gpus_as_soon_as_there_are_any(tmp_path: Path) -> None:
    """Its page goes on; nobody starts it again."""
    there = threading.Event()

    def answer(_path: str) -> bytes:
        if not there.is_set():
            raise NoPage
        return PAGE.read_bytes()

    with page_server(answer) as exporter:
        file = {
            "devices": "auto",
            "dcgm": {"url": exporter},
            "run_dir": str(tmp_path / "run"),
            "listen": {"metrics": f"127.0.0.1:{free_port()}"},
            "workers": [],
            "attach": {},
        }
        with running_node(file, tmp_path) as node:
            wait_for(lambda: "no GPUs are read" in node.log(), "the daemon to find no GPUs")
            # Its log tells of pages of engines, too: it finds those of other tests.
            serves = f"\nmetrics page: {node.page_url}\n"
            wait_for(lambda: serves in node.log(), "the daemon to serve")
            assert not gpus(node.page())
            there.set()
            wait_for(lambda: "GPUs can be read now" in node.log(), "GPUs to be noticed")
            wait_for(lambda: node.log().count(serves) == 2, "the daemon to serve again")
            wait_for(lambda: gpus(node.page()), "GPUs on the page")
            assert node.stop() == 0


def gpus(page: Page) -> list[str]:
    """Those of the exporter, not what stands for engines without a GPU."""
    known = (of["gpu"] for of, _ in page.samples.get("disagg_gpu_info", []))
    return [gpu for gpu in known if gpu.startswith("GPU-")]
