"""Every query of every dashboard before a real Prometheus: parsed, and answered on the demo."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from disagg_cluster.prometheus_api import PrometheusError, query
from support.dashboards import NAMES, Query, folded, load, marks, queries
from support.running_node import DISAGG_NODE, wait_for

pytestmark = pytest.mark.prometheus

NO_ROUTER = "the demo's load plays the router itself"
WITHOUT_DATA = {
    ("node", "SM clock"): "simulated devices have no clock",
    ("engines", "Requests a second"): NO_ROUTER,
    ("engines", "Waiting for prefill"): NO_ROUTER,
    ("engines", "Engines out of favour"): NO_ROUTER,
    ("engines", "Requests at the engines"): NO_ROUTER,
    ("engines", "Failed requests a second"): NO_ROUTER,
}
PARTLY = {
    ("cluster", "GPUs by role"): "no GPU of the demo is in another role",
    ("node", "GPUs by role"): "as above",
}
QUERIES = [each for name in NAMES for each in queries(name)]


def test_every_expression_is_promql(tmp_path: Path) -> None:
    """Panels and annotations alike, as the expressions of one rule file before promtool."""
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    asked = QUERIES + [each for name in NAMES for each in marks(name)]
    rules = [{"record": f"q:{number}", "expr": each.text} for number, each in enumerate(asked)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), "utf-8")

    done = subprocess.run([binary, "check", "rules", str(path)], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert f"{len(asked)} rules found" in done.stdout


def test_what_may_lack_data_is_folded_away() -> None:
    """And what is folded away lacks data here: neither list grows unnoticed."""
    hidden = {(name, title) for name in NAMES for title in folded(load(name))}

    assert hidden == set(WITHOUT_DATA)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Prometheus of a running demo."""
    log = tmp_path_factory.mktemp("demo") / "log"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [*DISAGG_NODE, "demo", "--metrics", "127.0.0.1:0"], stdout=out, stderr=out
        )
        try:
            found = wait_for(
                lambda: re.search(r"^Prometheus: (\S+)", log.read_text("utf-8"), re.MULTILINE),
                "the demo's Prometheus",
            )
            yield found.group(1)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)


def test_every_query_finds_data_on_the_demo(prometheus: str) -> None:
    """A panel that stays empty here is a panel that nobody has seen."""
    unasked = WITHOUT_DATA.keys() | PARTLY.keys()
    missing = {each for each in QUERIES if (each.dashboard, each.panel) not in unasked}
    assert len(missing) > 100

    def all_found() -> bool:
        missing.difference_update([each for each in missing if answered(prometheus, each)])
        return not missing

    with contextlib.suppress(AssertionError):
        wait_for(all_found, "data for every panel", 120.0)
    assert sorted(missing, key=str) == []


def answered(prometheus: str, asked: Query) -> bool:
    """Whether the query has a value."""
    try:
        values = [value for _, value in query(prometheus, asked.text)]
    except PrometheusError:
        return False  # it is still starting; a bad expression stays among the missing
    return any(not math.isnan(value) for value in values)
