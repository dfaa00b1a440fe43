from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.deploy.export import ExportError, export
from disagg_cluster.host.files.package_data import asset_dir
from support.umask import umask

NAMES = ["capacity", "cluster", "engines", "exporter", "fleet", "node"]


def run(*args: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    result = CliRunner().invoke(main, ["dashboards", *args], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def shipped(name: str) -> str:
    return asset_dir("grafana").joinpath("dashboards", f"{name}.json").read_text(encoding="utf-8")


def provider(folder: Path) -> dict[str, Any]:
    path = folder / "provisioning" / "dashboards" / "disagg-node.yaml"
    [only] = yaml.safe_load(path.read_text(encoding="utf-8"))["providers"]
    return dict(only)


def test_a_grafana_of_another_user_may_read_what_is_exported(tmp_path: Path) -> None:
    with umask(0o077):
        export(tmp_path / "new", {"dashboards/a.json": "{}"})

    assert (tmp_path / "new" / "dashboards" / "a.json").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "new" / "dashboards").stat().st_mode & 0o777 == 0o755


def test_an_export_writes_the_shipped_dashboards_and_lists_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    exit_code, out, err = run("export", "out")

    assert (exit_code, err) == (0, "")
    assert out.splitlines() == [
        *(f"out/dashboards/{name}.json" for name in NAMES),
        "out/provisioning/dashboards/disagg-node.yaml",
        "out/provisioning/datasources/disagg-node.yaml",
    ]
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(map(str, written)) == sorted(out.splitlines())
    for name in NAMES:
        text = (tmp_path / "out" / "dashboards" / f"{name}.json").read_text(encoding="utf-8")
        assert text == shipped(name)


def test_the_grafana_provider_has_the_path_of_the_dashboards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is absolute, as Grafana runs in another folder."""
    monkeypatch.chdir(tmp_path)

    run("export", "out")

    assert provider(tmp_path / "out")["options"]["path"] == str(tmp_path / "out" / "dashboards")


def test_dashboards_use_the_given_data_source_by_default(tmp_path: Path) -> None:
    """No data source is exported then."""
    exit_code, out, _ = run("export", str(tmp_path), "--datasource", "Thanos")

    assert exit_code == 0
    assert "datasources" not in out
    for name in NAMES:
        text = (tmp_path / "dashboards" / f"{name}.json").read_text(encoding="utf-8")
        dashboard, as_shipped = json.loads(text), json.loads(shipped(name))
        [variable] = [v for v in dashboard["templating"]["list"] if v["type"] == "datasource"]
        assert variable.pop("current") == {"selected": True, "text": "Thanos", "value": "Thanos"}
        [ours] = [v for v in as_shipped["templating"]["list"] if v["type"] == "datasource"]
        ours.pop("current", None)
        assert dashboard == as_shipped


def test_runbook_links_use_the_given_base(tmp_path: Path) -> None:
    assert run("export", str(tmp_path), "--runbooks", "https://wiki.example/disagg/")[0] == 0

    for name in NAMES:
        text = (tmp_path / "dashboards" / f"{name}.json").read_text(encoding="utf-8")
        dashboard, as_shipped = json.loads(text), json.loads(shipped(name))
        [base] = [v for v in dashboard["templating"]["list"] if v["name"] == "runbooks"]
        assert base["query"] == "https://wiki.example/disagg"
        base["query"] = "docs/runbooks"
        assert dashboard == as_shipped


def test_runbook_links_use_the_given_ending(tmp_path: Path) -> None:
    assert run("export", str(tmp_path), "--runbook-ending", ".html")[0] == 0

    found = {
        link
        for name in NAMES
        for link in re.findall(
            r"\$\{runbooks\}/[^\"]+",
            (tmp_path / "dashboards" / f"{name}.json").read_text(encoding="utf-8"),
        )
    }
    assert "${runbooks}/DisaggPoolFull.html" in found
    assert "${runbooks}/${__data.fields.Alert}.html" in found
    assert {link for link in found if not link.endswith(".html")} == set()


@pytest.mark.parametrize("url", ["https://prom.example/east", r"http://prom/a\1b#c: d"])
def test_the_data_source_has_the_given_prometheus_address(url: str, tmp_path: Path) -> None:
    file = tmp_path / "provisioning" / "datasources" / "disagg-node.yaml"

    assert run("export", str(tmp_path), "--prometheus", url)[0] == 0

    [source] = yaml.safe_load(file.read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == url


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://a", "http://", "http://a:b@prom:9090"])
def test_an_invalid_prometheus_address_is_refused(url: str, tmp_path: Path) -> None:
    exit_code, _, err = run("export", str(tmp_path), "--prometheus", url)

    assert exit_code == 2
    assert "is no address such as http://prometheus:9090" in err
    assert list(tmp_path.iterdir()) == []


def test_a_changed_file_is_kept_unless_forced(tmp_path: Path) -> None:
    run("export", str(tmp_path))
    edited, theirs = tmp_path / "dashboards" / "node.json", tmp_path / "dashboards" / "mine.json"
    gone = tmp_path / "dashboards" / "cluster.json"
    edited.write_text("edited", encoding="utf-8")
    theirs.write_text("theirs", encoding="utf-8")
    gone.unlink()

    assert run("export", str(tmp_path)) == (
        1,
        "",
        f"disagg-node: {tmp_path} has its own dashboards/node.json: --force replaces it\n",
    )
    assert not gone.exists()

    assert run("export", str(tmp_path), "--force")[0] == 0
    assert edited.read_text(encoding="utf-8") == shipped("node")
    assert gone.exists()
    assert theirs.read_text(encoding="utf-8") == "theirs"


def test_a_repeated_export_succeeds_with_the_same_output_and_files(tmp_path: Path) -> None:
    def exported() -> tuple[tuple[int, str, str], dict[Path, bytes]]:
        result = run("export", str(tmp_path))
        return result, {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    first = exported()

    assert first[0][0] == 0
    assert tmp_path / "dashboards" / "node.json" in first[1]
    assert exported() == first


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "dashboards").write_text("in the way", encoding="utf-8")

    exit_code, out, err = run("export", str(tmp_path))

    assert (exit_code, out) == (1, "")
    wanted = tmp_path / "dashboards" / "capacity.json"
    assert err == f"disagg-node: cannot write {wanted}: File exists\n"


def test_a_file_in_place_of_the_folder_is_bad_usage(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")

    exit_code, _, err = run("export", str(file))

    assert exit_code == 2
    assert err.endswith(f"Error: Invalid value for 'DIR': Directory '{file}' is a file.\n")


def test_a_failed_write_leaves_the_previous_file(tmp_path: Path) -> None:
    """A file is replaced only once it is complete."""
    kept = tmp_path / "a.json"
    kept.write_text("before", encoding="utf-8")
    (tmp_path / ".a.json.part").mkdir()

    with pytest.raises(ExportError, match=r"a\.json"):
        export(tmp_path, {"a.json": "after"}, force=True)

    assert kept.read_text(encoding="utf-8") == "before"


def test_the_shipped_grafana_provisioning_is_well_formed() -> None:
    """`apiVersion`, one provider of type file, one Prometheus."""
    folder = asset_dir("grafana").joinpath("provisioning")
    said = {
        kind: yaml.safe_load(folder.joinpath(kind, "disagg-node.yaml").read_text(encoding="utf-8"))
        for kind in ("dashboards", "datasources")
    }

    assert [entry["type"] for entry in said["dashboards"]["providers"]] == ["file"]
    assert [entry["type"] for entry in said["datasources"]["datasources"]] == ["prometheus"]
    assert {each["apiVersion"] for each in said.values()} == {1}
