"""What `disagg-node planner` says of its own options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.daemon import foreground
from disagg_cluster.planner.service.planner_service import PlannerService
from disagg_exporter.http.listen import ListenAddress, parse_listen


def test_an_open_page_is_warned_about_with_a_key_that_the_planner_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no `--listen`."""

    def serve(_service: PlannerService, serving: Callable[[ListenAddress], None]) -> None:
        serving(parse_listen("0.0.0.0:9900"))

    monkeypatch.setattr(PlannerService, "run", serve)
    monkeypatch.setattr(foreground, "log_to_stderr", lambda _verbose: None)
    file = tmp_path / "planner.yaml"
    file.write_text("listen: {metrics: '0.0.0.0:9900'}\n")

    said = CliRunner().invoke(main, ["planner", "-c", str(file)]).stderr

    assert "`listen: metrics: 127.0.0.1:9900` or `web_config:` (docs/serving.md)" in said
    assert "--listen" not in said
