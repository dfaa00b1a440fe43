"""An installation upgraded to another version, and removed again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.deploy.install.plan import digest
from disagg_cluster.deploy.install.service import ServiceError, SystemdService, spares_engines
from disagg_cluster.nodefile import parse

WORKER = "{name: a, role: mixed, model: m, port: 8100}"


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, args, prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def told(*args: str) -> dict[str, Any]:
    code, out, err = run(*args, "--json")
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def actions(value: dict[str, Any]) -> dict[str, str]:
    return {Path(step["path"]).name: step["action"] for step in value["files"]}


def test_removal_restores_the_previous_state(tmp_path: Path) -> None:
    """A folder that existed before keeps only what is not ours."""
    folder, theirs = tmp_path / "disagg", tmp_path / "disagg" / "grafana" / "mine.json"
    assert run("install", "--into", str(folder), "--apply")[0] == 0
    theirs.write_text("theirs")
    (folder / "empty").mkdir()
    before = tree(tmp_path)

    planned = told("uninstall", "--into", str(folder))
    assert tree(tmp_path) == before

    done = told("uninstall", "--into", str(folder), "--apply")
    assert planned["files"] == done["files"]
    assert set(actions(done).values()) == {"remove"}
    assert tree(tmp_path) == {"disagg/grafana/mine.json": b"theirs"}
    assert (folder / "empty").is_dir()
    assert not (folder / "prometheus").exists()


def test_removal_from_a_system_leaves_only_existing_folders(tmp_path: Path) -> None:
    for name in ("prometheus", "grafana/provisioning/dashboards"):
        (tmp_path / "etc" / name).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    place = ("--system", "--root", str(tmp_path), "--apply")

    assert told("install", *place)["next"]
    assert (tmp_path / "etc" / "disagg-node" / "node.yaml").is_file()
    assert told("uninstall", *place)["done"] == []

    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set()
    assert set(before) <= set(tmp_path.rglob("*"))
    assert not (tmp_path / "etc" / "disagg-node").exists()


def test_filled_in_files_are_kept_and_with_force_removed(tmp_path: Path) -> None:
    place = ("--into", str(tmp_path))
    run("install", *place, "--apply")
    node = tmp_path / "node.yaml"
    node.write_text("node: mine\n")
    # A repeated install does not record a changed file as its own.
    run("install", *place, "--apply")

    assert actions(told("uninstall", *place))["node.yaml"] == "keep"
    assert actions(told("uninstall", *place, "--force"))["node.yaml"] == "remove"

    run("uninstall", *place, "--apply")
    assert tree(tmp_path) == {"node.yaml": b"node: mine\n"}


@pytest.mark.parametrize("command", [("uninstall",), ("install", "--upgrade")])
def test_a_missing_installation_is_reported(command: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = run(*command, "--into", str(tmp_path), "--apply")

    assert (code, out) == (1, "")
    assert err == (
        f"disagg-node: nothing is installed there: {tmp_path}/.installed.json is not there\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_upgrade_repeats_the_original_choices(tmp_path: Path) -> None:
    place = ("install", "--into", str(tmp_path), "--apply")
    chosen = ("--part", "service", "--part", "prometheus", "--user", "inference")
    run(*place, *chosen, "--runbooks", "https://wiki.example")
    before = tree(tmp_path)

    upgraded = told(*place, "--upgrade")
    assert set(actions(upgraded).values()) == {"same"}
    assert tree(tmp_path) == before

    changed = actions(told(*place, "--upgrade", "--user", "other"))
    assert {name for name, action in changed.items() if action != "same"} == {"disagg-node.service"}
    assert "User=other" in (tmp_path / "disagg-node.service").read_text()


def test_an_upgrade_writes_new_files_and_removes_obsolete_ones(
    tmp_path: Path,
) -> None:
    place = ("install", "--into", str(tmp_path), "--apply")
    run(*place)
    new = tree(tmp_path)
    # As an older version would have left it: another text, and a file no longer shipped.
    record, rules = tmp_path / ".installed.json", tmp_path / "prometheus" / "rules"
    value = json.loads(record.read_text())
    shipped = rules / "disagg-recording.yaml"
    (rules / "old.yaml").write_bytes(shipped.read_bytes())
    value["files"][str(rules / "old.yaml")] = value["files"][str(shipped)]
    (rules / "theirs.yaml").write_text("theirs")
    value["files"][str(rules / "theirs.yaml")] = "0"
    record.write_text(json.dumps(value))

    upgraded = told(*place, "--upgrade")

    assert actions(upgraded)["old.yaml"] == "remove"
    assert actions(upgraded)["theirs.yaml"] == "left"
    assert tree(tmp_path).keys() - new.keys() == {"prometheus/rules/theirs.yaml"}
    assert "systemctl reload prometheus" in upgraded["next"]


def test_engines_left_serving_are_named_with_the_command_that_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = SimpleNamespace(worker="prefill-0", pid=12)
    asked: list[Path] = []
    monkeypatch.setattr(
        "disagg_cluster.daemon.stop.left_behind",
        lambda folder: asked.append(folder.path) or (left,),
    )
    run("install", "--into", str(tmp_path), "--apply", "--part", "service")

    found = told("uninstall", "--into", str(tmp_path), "--apply")["next"]

    assert asked == [Path("/run/disagg-node")]
    assert "prefill-0 (pid 12): still serving" in found[0]
    assert found[1] == "disagg-node stop --workers --run-dir /run/disagg-node"


@pytest.mark.parametrize("name", ["{theirs}", "{folder}/../theirs", "{folder}/link/theirs"])
def test_a_forged_record_affects_no_file_outside_the_folder(name: str, tmp_path: Path) -> None:
    """Another user may have written the record, and root may run the removal."""
    theirs, folder = tmp_path / "theirs", tmp_path / "disagg"
    theirs.write_text("theirs")
    run("install", "--into", str(folder), "--apply", "--part", "service")
    (folder / "link").symlink_to(tmp_path)
    record = folder / ".installed.json"
    value = json.loads(record.read_text())
    value["files"][name.format(theirs=theirs, folder=folder)] = digest("theirs")
    record.write_text(json.dumps(value))

    told("install", "--into", str(folder), "--upgrade", "--apply")
    told("uninstall", "--into", str(folder), "--apply", "--force")

    assert theirs.read_text() == "theirs"


def test_a_folder_that_is_a_link_stays(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real")
    run("install", "--into", str(link), "--apply")

    told("uninstall", "--into", str(link), "--apply")

    assert link.is_symlink()
    assert tree(tmp_path) == {}


def test_a_record_without_options_is_accepted(tmp_path: Path) -> None:
    place = ("install", "--into", str(tmp_path), "--apply")
    run(*place)
    record = tmp_path / ".installed.json"
    record.write_text(json.dumps({"files": json.loads(record.read_text())["files"]}))

    assert set(actions(told(*place, "--upgrade")).values()) == {"same"}


def test_a_record_with_an_unknown_part_is_reported(tmp_path: Path) -> None:
    place = ("install", "--into", str(tmp_path), "--apply")
    run(*place)
    record = tmp_path / ".installed.json"
    value = json.loads(record.read_text())
    value["choices"]["parts"] = ["kitchen"]
    record.write_text(json.dumps(value))

    code, _, err = run(*place, "--upgrade")

    assert code == 1
    assert "the record of the installation: 'kitchen' is not a valid InstallPart" in err


def fake_systemctl(folder: Path, code: int = 0) -> SystemdService:
    program = folder / "systemctl"
    log = folder / "asked"
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\necho refused >&2\nexit {code}\n')
    program.chmod(0o755)
    return SystemdService(str(program))


def test_systemctl_restarts_and_stops_the_service(tmp_path: Path) -> None:
    said: list[str] = []
    service = replace(fake_systemctl(tmp_path), say=said.append)

    done = (*service.reload(restart=True), *service.end(), *service.forget())

    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [
        "daemon-reload",
        "try-restart disagg-node.service",
        "disable --now disagg-node.service",
        "daemon-reload",
    ]
    assert done == tuple(f"systemctl {words}" for words in asked) == tuple(said)
    assert service.reload(restart=False) == ("systemctl daemon-reload",)


def test_errors_of_systemctl_are_reported_with_its_text(tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as error:
        fake_systemctl(tmp_path, code=5).end()

    assert str(error.value) == "systemctl disable --now disagg-node.service: refused"


def test_where_no_systemd_runs_nothing_is_done() -> None:
    nobody = SystemdService(None)

    assert (*nobody.reload(restart=True), *nobody.end(), *nobody.forget()) == ()


@pytest.mark.parametrize(
    ("text", "spares"),
    [
        ("attach: {}", True),
        (f"devices: cpu\non_sigterm: leave\nworkers: [{WORKER}]", True),
        (f"devices: cpu\nworkers: [{WORKER}]", False),
    ],
)
def test_a_restart_needs_a_node_file_that_leaves_its_engines(
    text: str, spares: bool, tmp_path: Path
) -> None:
    config = parse(f"node: n\n{text}\n", "node.yaml", folder=tmp_path)

    assert spares_engines(config) is spares
