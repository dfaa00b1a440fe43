from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from support.alert_rules import ALERTS, RULE_FILES

FILES = [*(f"rules/{path.name}" for path in RULE_FILES), "alertmanager.yaml"]


def export(*args: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `disagg-node rules export`."""
    result = CliRunner().invoke(main, ["rules", "export", *args], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def written(folder: Path) -> dict[str, bytes]:
    """Everything below the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_rules_and_the_example_are_exported_as_shipped(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"

    assert export(str(folder)) == (0, "".join(f"{folder / name}\n" for name in FILES), "")
    assert written(folder) == {name: (ALERTS / name).read_bytes() for name in FILES}


def test_optional_alerts_are_exported_with_the_option(tmp_path: Path) -> None:
    assert export(str(tmp_path), "--optional")[0] == 0

    name = "disagg-alerts-optional.yaml"
    optional = {f"rules/{name}": (ALERTS / "optional" / name).read_bytes()}
    assert written(tmp_path) == {name: (ALERTS / name).read_bytes() for name in FILES} | optional


def test_with_without_daemon_only_rules_that_need_no_daemon_are_exported(tmp_path: Path) -> None:
    assert export(str(tmp_path), "--without-daemon")[0] == 0

    name = "rules/disagg-dcgm.yaml"
    assert written(tmp_path) == {name: (ALERTS / "without-daemon" / name).read_bytes()}


def test_runbook_links_use_the_given_base(tmp_path: Path) -> None:
    assert export(str(tmp_path), "--runbooks", "https://wiki.example/disagg/")[0] == 0

    rules = yaml.safe_load(
        (tmp_path / "rules" / "disagg-alerts-fleet.yaml").read_text(encoding="utf-8")
    )
    links = {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in rules["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert links == {name: f"https://wiki.example/disagg/{name}.md" for name in links}
    assert "DisaggNodeDown" in links


def test_runbook_links_use_the_given_ending(tmp_path: Path) -> None:
    """The site built from docs/ has other file endings than the repository."""
    site = ("--runbooks", "https://docs.example/runbooks", "--runbook-ending", ".html")
    assert export(str(tmp_path), *site)[0] == 0

    text = (tmp_path / "rules" / "disagg-alerts-fleet.yaml").read_text(encoding="utf-8")
    assert "runbook_url: https://docs.example/runbooks/DisaggNodeDown.html\n" in text
    assert ".md\n" not in text


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    first = export(str(tmp_path))
    before = written(tmp_path)

    assert export(str(tmp_path)) == first
    assert written(tmp_path) == before


def test_a_changed_file_is_kept_unless_forced(tmp_path: Path) -> None:
    export(str(tmp_path))
    mine = tmp_path / "alertmanager.yaml"
    mine.write_text("mine\n", encoding="utf-8")
    (tmp_path / "rules" / "disagg-alerts.yaml").unlink()

    assert export(str(tmp_path)) == (
        1,
        "",
        f"disagg-node: {tmp_path} has its own alertmanager.yaml: --force replaces it\n",
    )
    assert not (tmp_path / "rules" / "disagg-alerts.yaml").exists()
    assert export(str(tmp_path), "--force")[0] == 0
    assert mine.read_bytes() == (ALERTS / "alertmanager.yaml").read_bytes()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    code, out, err = export(str(tmp_path / "file"))
    assert (code, out) == (1, "")
    assert err.startswith("disagg-node: cannot write ")
    assert err.endswith(": Not a directory\n")


@pytest.mark.parametrize("args", [[], ["a", "b"]])
def test_other_than_one_folder_is_bad_usage(args: list[str]) -> None:
    assert export(*args)[0] == 2
