"""A node file is read once: what changes in it meanwhile gives no half of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli import main
from disagg_cluster.host.files.named_paths import read_bounded

# No node has this GPU, which only the node itself can know.
NODE_FILE = """\
workers:
  - name: a
    engine: standin
    role: mixed
    model: org/m
    port: 18100
    gpus: [99]
"""


def test_a_file_that_changes_while_a_node_starts_is_reported_as_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(NODE_FILE)

    def read_and_change(path: Path, most: int) -> bytes:
        text = read_bounded(path, most)
        path.write_text(f"# somebody writes\n# on in it\n{path.read_text()}")
        return text

    monkeypatch.setattr("disagg_cluster.nodefile.yaml_positions.read_bounded", read_and_change)
    monkeypatch.setattr("disagg_cluster.daemon.foreground.log_to_stderr", lambda *_, **__: None)

    result = CliRunner().invoke(main, ["start", "--config", str(file)], prog_name="disagg-node")

    assert result.exit_code == 2
    assert f"{file}:7: workers[0].gpus: " in result.stderr
