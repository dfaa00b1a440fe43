"""A Prometheus with a made-up past: OpenMetrics samples, made into blocks."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from disagg_cluster.prometheus.local_server import prepare_prometheus
from disagg_cluster.prometheus.prometheus_api import PrometheusError
from support.children import free_port
from support.prometheus_query import query
from support.running_node import wait_for

At = Callable[[int], float | None]
"""A value at an instant; None where there was no sample."""


@dataclass(frozen=True, slots=True)
class Past:
    """One series and its values."""

    name: str
    labels: Mapping[str, str]
    at: At


def openmetrics(series: Iterable[Past], instants: range) -> str:
    """Return the text for promtool to make blocks of, by family, then by series."""
    lines: list[str] = []
    current = ""
    for past in sorted(series, key=lambda each: each.name):
        if past.name != current:
            lines.append(f"# TYPE {past.name} gauge")
            current = past.name
        labels = ",".join(f'{key}="{value}"' for key, value in past.labels.items())
        for instant in instants:
            value = past.at(instant)
            if value is not None:
                lines.append(f"{past.name}{{{labels}}} {value!r} {instant}")
    return "\n".join((*lines, "# EOF\n"))


@contextlib.contextmanager
def prometheus_with(
    text: str, folder: Path, *flags: str, rules: Sequence[Path] = ()
) -> Iterator[str]:
    """Run a Prometheus on blocks made from a text, with further flags; yield its address.

    It evaluates the rules of the given files from then on.
    """
    promtool = shutil.which("promtool")
    if promtool is None or shutil.which("prometheus") is None:
        pytest.skip("prometheus and promtool are not installed: apt-get install prometheus")
    source, data = folder / "past.om", folder / "prometheus" / "data"
    source.write_text(text, encoding="utf-8")
    data.mkdir(parents=True)
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(source), str(data)],
        check=True,
        capture_output=True,
    )
    launch = prepare_prometheus(
        Path("prometheus"),
        folder / "prometheus",
        yaml.safe_dump(
            {"global": {"scrape_interval": "1h"}, "rule_files": [str(path) for path in rules]}
        ),
        listen=f"127.0.0.1:{free_port()}",
        retention="365d",
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen((*launch.argv, *flags), stdout=log, stderr=log)
        try:
            wait_for(lambda: _answers(launch.url), "Prometheus to answer", 60)
            yield launch.url
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(PrometheusError):
        return bool(query(url, "vector(1)"))
    return False
