from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.config import NodeConfig
from disagg_cluster.deploy.install.files import (
    InstallPart,
    NodeToInstall,
    Shipped,
    below,
    desired_files,
    on_system,
)
from support.certificates import write_files
from support.umask import umask

SHIPPED = Shipped(
    {"rules/r.yaml": "groups: []\n", "alertmanager.yaml": "route: {}\n"},
    {"dashboards/d.json": "{}\n", "provisioning/dashboards/disagg-node.yaml": "x\n"},
)


def run(*args: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `disagg-node install`."""
    result = CliRunner().invoke(main, ["install", *args], prog_name="disagg-node")
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


def test_without_apply_nothing_is_written(tmp_path: Path) -> None:
    code, out, err = run("--into", str(tmp_path / "new"))

    assert (code, err) == (0, "")
    assert list(tmp_path.iterdir()) == []
    assert f"create   {tmp_path}/new/disagg-node.service (is not there)" in out
    assert "    +KillMode=process" in out
    assert "lines differ; --full shows them" in out
    assert "Nothing was changed: --apply writes them." in out


def test_apply_writes_every_file_and_a_second_apply_none(tmp_path: Path) -> None:
    first = told("--into", str(tmp_path), "--apply")
    before = tree(tmp_path)
    second = told("--into", str(tmp_path), "--apply")

    assert set(actions(first).values()) == {"create"}
    assert set(actions(second).values()) == {"same"}
    assert tree(tmp_path) == before
    assert {
        "node.yaml",
        "disagg-node.service",
        "prometheus/prometheus.yaml",
        "prometheus/rules/disagg-recording.yaml",
        "grafana/dashboards/cluster.json",
        "grafana/provisioning/dashboards/disagg-node.yaml",
        ".installed.json",
    } <= before.keys()
    assert f"systemctl link {tmp_path}/disagg-node.service" in first["next"]


def test_prometheus_and_grafana_may_read_their_files_whatever_the_umask(tmp_path: Path) -> None:
    """They run as other users, and a folder of rules that may not be read is an empty one."""
    root = tmp_path / "image"
    for name in ("prometheus", "grafana"):
        (root / "etc" / name).mkdir(parents=True)
    with umask(0o077):
        run("--system", "--root", str(root), "--apply")

    written = [path for path in root.rglob("*") if path.is_file()]
    closed = {path.name for path in written if not path.stat().st_mode & stat.S_IROTH}
    # The node file may hold secrets; the record is nobody else's business.
    assert closed == {"node.yaml", ".installed.json"}
    assert all(path.stat().st_mode & stat.S_IXOTH for path in root.rglob("*") if path.is_dir())


def test_the_plan_without_apply_equals_what_apply_does(tmp_path: Path) -> None:
    planned, done = told("--into", str(tmp_path)), told("--into", str(tmp_path), "--apply")

    assert planned["files"] == done["files"]
    assert (planned["applied"], done["applied"]) == (False, True)


def test_changed_files_are_kept_and_with_force_replaced(tmp_path: Path) -> None:
    run("--into", str(tmp_path), "--apply")
    (tmp_path / "disagg-node.service").write_text("mine\n", encoding="utf-8")
    (tmp_path / "node.yaml").write_text("node: mine\n", encoding="utf-8")

    kept = told("--into", str(tmp_path), "--apply")
    assert actions(kept)["disagg-node.service"] == "keep"
    assert (tmp_path / "disagg-node.service").read_text(encoding="utf-8") == "mine\n"

    forced = told("--into", str(tmp_path), "--apply", "--force")
    assert actions(forced)["disagg-node.service"] == "replace"
    assert "[Unit]" in (tmp_path / "disagg-node.service").read_text(encoding="utf-8")
    assert (tmp_path / "node.yaml").read_text(encoding="utf-8") == "node: mine\n"


def test_our_files_follow_the_node_file(tmp_path: Path) -> None:
    run("--into", str(tmp_path), "--apply")
    text = 'node: n\ncluster: c\nlisten: {metrics: "10.0.0.7:9900"}\n'
    (tmp_path / "node.yaml").write_text(text, encoding="utf-8")

    changed = actions(told("--into", str(tmp_path), "--apply"))
    config = yaml.safe_load((tmp_path / "prometheus" / "prometheus.yaml").read_text())
    (static,) = config["scrape_configs"][0]["static_configs"]

    assert {name for name, action in changed.items() if action != "same"} == {"prometheus.yaml"}
    assert static == {"targets": ["10.0.0.7:9900"], "labels": {"node": "n", "cluster": "c"}}


def test_a_page_with_tls_is_scraped_with_tls(tmp_path: Path) -> None:
    write_files(
        tmp_path, {"web.yml": "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"}
    )
    text = f'listen: {{metrics: ":9847", web_config: {tmp_path}/web.yml}}\n'
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")

    value = told("--into", str(tmp_path / "x"), "-c", str(tmp_path / "mine.yaml"), "--apply")
    config = yaml.safe_load((tmp_path / "x" / "prometheus" / "prometheus.yaml").read_text())

    assert config["scrape_configs"][0]["scheme"] == "https"
    assert any("docs/serving.md" in line for line in value["next"])
    assert (tmp_path / "x" / "node.yaml").read_text(encoding="utf-8") == text


def test_another_node_file_than_the_installed_one_is_refused(tmp_path: Path) -> None:
    run("--into", str(tmp_path), "--apply")
    (tmp_path / "other.yaml").write_text("node: other\n", encoding="utf-8")

    code, _, err = run("--into", str(tmp_path), "-c", str(tmp_path / "other.yaml"))

    assert (code, "says something else than" in err) == (1, True)
    code, _, err = run("--into", str(tmp_path), "-c", str(tmp_path / "no.yaml"))
    assert (code, err) == (1, f"disagg-node: {tmp_path}/no.yaml does not exist\n")


def test_a_wrong_node_file_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("nodes: other\n", encoding="utf-8")

    code, _, err = run("--into", str(tmp_path / "x"), "-c", str(tmp_path / "mine.yaml"), "--apply")

    assert (code, "unknown key" in err) == (2, True)
    assert not (tmp_path / "x").exists()


def test_a_foreign_record_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / ".installed.json").write_text("[]", encoding="utf-8")

    code, _, err = run("--into", str(tmp_path), "--apply")

    assert (code, "is not what we wrote" in err) == (1, True)
    assert list(tree(tmp_path)) == [".installed.json"]


def test_an_unwritable_file_is_an_error_and_other_files_stay_recorded(
    tmp_path: Path,
) -> None:
    (tmp_path / "prometheus").write_text("in the way", encoding="utf-8")

    code, _, err = run("--into", str(tmp_path), "--apply", "--part", "service")
    assert (code, err) == (0, "")
    code, _, err = run("--into", str(tmp_path), "--apply")

    assert (code, f"{tmp_path}/prometheus" in err) == (1, True)
    ours = json.loads((tmp_path / ".installed.json").read_text(encoding="utf-8"))["files"]
    assert str(tmp_path / "disagg-node.service") in ours


def test_only_the_requested_parts_are_installed(tmp_path: Path) -> None:
    names = actions(told("--into", str(tmp_path), "--part", "service", "--part", "grafana"))

    assert "disagg-node.service" in names
    assert "cluster.json" in names
    assert "prometheus.yaml" not in names


@pytest.mark.parametrize("args", [[], ["--into", "x", "--system"]])
def test_exactly_one_target_folder_must_be_given(args: list[str]) -> None:
    assert run(*args)[0] == 2


def test_a_system_installation_uses_the_usual_paths(tmp_path: Path) -> None:
    node = NodeToInstall(
        NodeConfig(node="n"), "node: n\n", "http", Path("/usr/bin/disagg-node"), "root"
    )

    files = desired_files(on_system(tmp_path), tuple(InstallPart), node, SHIPPED)

    assert [str(file.path.relative_to(tmp_path)) for file in files] == [
        "etc/disagg-node/node.yaml",
        "etc/systemd/system/disagg-node.service",
        "etc/prometheus/disagg-node/scrape.yaml",
        "etc/prometheus/disagg-node/rules/r.yaml",
        "etc/prometheus/disagg-node/alertmanager.yaml",
        "etc/grafana/disagg-node/dashboards/d.json",
        "etc/grafana/provisioning/dashboards/disagg-node.yaml",
    ]
    assert list(yaml.safe_load(files[2].text)) == ["scrape_configs"]


def test_a_system_without_prometheus_gets_no_prometheus(tmp_path: Path) -> None:
    (tmp_path / "etc" / "grafana").mkdir(parents=True)

    assert on_system(tmp_path).usual_parts() == (InstallPart.SERVICE, InstallPart.GRAFANA)
    assert below(tmp_path).usual_parts() == tuple(InstallPart)


def test_prometheus_is_configured_with_an_alertmanager_and_a_cluster_label(tmp_path: Path) -> None:
    found = told("--into", str(tmp_path), "--cluster", "east", "--apply")

    config = yaml.safe_load((tmp_path / "prometheus" / "prometheus.yaml").read_text())
    assert config["global"]["external_labels"] == {"cluster": "east"}
    [manager] = config["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": ["127.0.0.1:9093"]}]
    assert any(line.startswith("alertmanager --config.file=") for line in found["next"])
    assert not any("the cluster has no name" in line for line in found["next"])


def test_missing_alerting_settings_of_an_existing_prometheus_are_listed() -> None:
    found = told("--system", "--part", "prometheus")

    [block] = [line for line in found["next"] if "alerting block" in line]
    assert json.loads(block.partition("alerting: ")[2]) == {
        "alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]
    }
    assert any("the cluster has no name" in line for line in found["next"])


def test_files_for_an_image_name_the_paths_that_the_image_will_see(tmp_path: Path) -> None:
    image = tmp_path / "image"
    for name in ("prometheus", "grafana"):
        (image / "etc" / name).mkdir(parents=True)

    value = told("--system", "--root", str(image), "--apply")

    assert {name for name, text in tree(image).items() if str(image).encode() in text} == set()
    unit = (image / "etc/systemd/system/disagg-node.service").read_text()
    assert "--config /etc/disagg-node/node.yaml" in unit
    assert value["undo"] == [f"disagg-node uninstall --system --root {image} --apply"]


def test_an_image_is_enabled_by_its_folder_and_no_service_of_this_machine_is_touched(
    tmp_path: Path,
) -> None:
    (tmp_path / "etc" / "prometheus").mkdir(parents=True)
    (tmp_path / "etc" / "grafana").mkdir(parents=True)

    steps = told("--system", "--root", str(tmp_path), "--apply")["next"]

    assert [step for step in steps if step.startswith("systemctl")] == [
        f"systemctl --root={tmp_path} enable disagg-node"
    ]
    [rules] = [step for step in steps if "rule_files" in step]
    assert rules.endswith(" /etc/prometheus/disagg-node/rules/*.yaml")


def test_an_installation_in_an_image_is_known_wherever_the_image_is_mounted(tmp_path: Path) -> None:
    built, mounted = tmp_path / "built", tmp_path / "mounted"
    built.mkdir()
    told("--system", "--root", str(built), "--apply")
    built.rename(mounted)

    value = told("--system", "--root", str(mounted), "--upgrade", "--apply")

    assert set(actions(value).values()) == {"same"}
    assert value["next"] == []
