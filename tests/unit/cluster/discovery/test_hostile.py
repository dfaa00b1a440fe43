"""A malicious engine: its data must not reach our page, our log or its neighbours."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from disagg_cluster.config import Attach
from disagg_cluster.config.layout import place
from disagg_cluster.daemon.daemon import Daemon
from disagg_cluster.inspect import node_scan, phase_table
from disagg_cluster.nodefile import from_mapping
from disagg_exporter.devices.source import NoDevices
from disagg_exporter.metrics.page_cache import PageCache
from disagg_exporter.metrics.render import rows_of
from disagg_exporter.model import EngineStatus, Snapshot
from support.fake_engines import FakeEngine, install

SECRET = "s3cret"
KV = "--kv-transfer-config"

HOSTILE_ARGUMENTS = (
    *("--api-key", SECRET, "--served-model-name", SECRET, f"--{SECRET}", "--role", SECRET),
    *("--disaggregation-mode", SECRET, KV, f'{{"kv_role": "{SECRET}"}}'),
)
HOSTILE_ENVIRONMENT = {
    "HF_TOKEN": SECRET,
    "ROLE_NAME": SECRET,
    "DISAGG_NODE_ROLE": SECRET,
    "DYN_COMPONENT": SECRET,
    "HOSTNAME": f"prefill-{SECRET}",
    "VLLM_ADDITIONAL_ARGS": f"--api-key {SECRET}",
    "CUDA_VISIBLE_DEVICES": SECRET,
    "DISAGG_STEPS_SOCKET": f"/{SECRET}",
}
HOSTILE_LABELS = f'job="{SECRET}",pod="prefill-{SECRET}",engine_type="{SECRET}",x="{SECRET}"'


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Callable[..., FakeEngine]]:
    """Starts engines; ends them all."""
    install(tmp_path)
    with ExitStack() as stack:
        yield lambda *arguments, **more: stack.enter_context(
            FakeEngine(*arguments, folder=tmp_path, **more)
        )


def watched(until: Callable[[Snapshot], bool]) -> tuple[Snapshot, str]:
    """Run a daemon that attaches to what it finds until a condition holds; yield its page, too."""

    async def story(folder: Path) -> tuple[Snapshot, str]:
        file = {"devices": "cpu", "listen": {"metrics": "127.0.0.1:0"}, "attach": {}}
        config, source = from_mapping(file, "node.yaml"), NoDevices()
        daemon = Daemon(config, place(config, source.inventory()), source, folder / "run")
        async with daemon.running():
            async with asyncio.timeout(30):
                while daemon.snapshot is None or not until(daemon.snapshot):
                    await asyncio.sleep(0.05)
            shown = daemon.snapshot
            page = PageCache(lambda: shown, rows_of, lambda: shown.taken_ns).page("", gzipped=False)
            return shown, page.body.decode()

    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        return asyncio.run(story(Path(name)))


def of(snapshot: Snapshot, engine: FakeEngine) -> EngineStatus | None:
    name = f"{engine.kind}-{engine.port}"
    return next((status for status in snapshot.engines if status.engine == name), None)


def seen(status: EngineStatus) -> bool:
    """Whether its page was read, and its data used."""
    return status.up and bool(status.model_name)


def test_a_scan_without_a_daemon_repeats_no_hostile_text(
    engines: Callable[..., FakeEngine],
) -> None:
    hostile = engines("vllm", arguments=HOSTILE_ARGUMENTS, environment=HOSTILE_ENVIRONMENT)
    hostile.wait_served()

    look = node_scan.scan_node(NoDevices(), Attach())

    rows = node_scan.rows_of(look)
    assert f"vllm-{hostile.port}" in {row.engine for row in rows}
    assert SECRET not in phase_table.as_text(rows) + phase_table.as_json(rows) + repr(look)


PAGES = (
    b"",
    b"\xff" * 1_000_000 + b"\n",
    b"<html>" + b"x" * 1_000_000,
    b'vllm:generation_tokens_total{model_name="m"} 1e18\n' * 2,
    b'vllm:generation_tokens_total{model_name="' + b"x" * 1_000_000 + b'"} 1\n',
    b"vllm:generation_tokens_total NaN\nvllm:num_requests_running -1\n",
)


def test_hostile_engines_text_is_not_repeated_and_affects_no_neighbour(
    engines: Callable[..., FakeEngine], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    honest = engines("vllm", arguments=(KV, '{"kv_role": "kv_producer"}'))
    honest.page.write_bytes(b'vllm:generation_tokens_total{model_name="m"} 1\n')
    talking = engines("vllm", arguments=HOSTILE_ARGUMENTS, environment=HOSTILE_ENVIRONMENT)
    talking.page.write_text(
        f'vllm:generation_tokens_total{{model_name="x",{HOSTILE_LABELS}}} 7\n'
        f'vllm:{SECRET}{{model_name="x"}} 1\n'
    )
    broken = [engines("vllm", arguments=(KV, '{"kv_role": "kv_consumer"}')) for _ in PAGES]
    for engine, page in zip(broken, PAGES, strict=True):
        engine.page.write_bytes(page)
    looked = {f"engine:vllm-{engine.port}" for engine in broken}

    snapshot, text = watched(
        lambda s: (
            all((found := of(s, one)) is not None and seen(found) for one in (honest, talking))
            and looked <= {status.collector for status in s.collectors}
        )
    )

    found = of(snapshot, honest)
    assert found is not None
    assert (found.role, found.model_name) == ("prefill", "m")
    assert max(map(len, text.splitlines())) < 1000
    assert SECRET not in text
    assert SECRET not in caplog.text
