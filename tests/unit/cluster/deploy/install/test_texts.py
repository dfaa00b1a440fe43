from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from disagg_cluster.config import NodeConfig
from disagg_cluster.deploy.install.texts import starter_text, unit_text
from disagg_cluster.nodefile import from_mapping, parse

PROGRAM, NODE, ENVIRONMENT = (
    Path("/opt/d/disagg-node"),
    Path("/etc/d/node.yaml"),
    Path("/etc/d/env"),
)


def unit(config: NodeConfig | None = None, user: str = "root", node: Path = NODE) -> str:
    return unit_text(config or NodeConfig(), PROGRAM, node, ENVIRONMENT, user)


def setting(text: str, name: str) -> str:
    """Return one setting of the service; each may occur once."""
    (found,) = re.findall(rf"^{name}=(.*)$", text, flags=re.MULTILINE)
    return str(found)


def test_stopping_the_service_does_not_kill_the_engines() -> None:
    text = unit()

    assert setting(text, "KillMode") == "process"
    assert setting(text, "RuntimeDirectoryPreserve") == "yes"
    assert setting(text, "OOMPolicy") == "continue"
    assert setting(text, "RestartPreventExitStatus") == "2"


def test_the_service_notifies_readiness_and_is_restarted_by_its_watchdog() -> None:
    text = unit()

    assert setting(text, "Type") == "notify"
    assert setting(text, "NotifyAccess") == "main"
    assert int(setting(text, "WatchdogSec")) >= 30
    assert setting(text, "Restart") == "on-failure"  # which an end by the watchdog is


@pytest.mark.parametrize(
    "forbidden",
    [
        *("PrivateDevices", "DeviceAllow", "MemoryDenyWriteExecute", "PrivateTmp", "ProtectHome"),
        *("ProtectClock", "ProtectKernelModules", "ProtectKernelLogs", "NoNewPrivileges"),
    ],
)
def test_hardening_allows_what_drivers_and_engines_need(forbidden: str) -> None:
    assert re.search(rf"^{forbidden}=", unit(), flags=re.MULTILINE) is None


@pytest.mark.parametrize("implies", ["LockPersonality", "RestrictSUIDSGID", "ProtectHostname"])
def test_an_unprivileged_user_gets_no_setting_that_implies_no_new_privileges(implies: str) -> None:
    """NoNewPrivileges is what systemd implies from these for all but root."""
    assert f"{implies}=yes" in unit()
    assert implies not in unit(user="vllm")
    assert setting(unit(user="vllm"), "User") == "vllm"


def test_a_daemon_that_leaves_its_engines_ends_soon() -> None:
    assert setting(unit(NodeConfig(on_sigterm="leave")), "TimeoutStopSec") == "30"


def test_a_daemon_that_stops_its_engines_is_given_their_time() -> None:
    worker = {"name": "a", "engine": "standin", "role": "mixed", "model": "m", "port": 8100}
    deadlines = {"drain_seconds": 100.0, "stop_seconds": 20.0}
    config = from_mapping({"devices": "cpu", "workers": [worker | {"deadlines": deadlines}]}, "x")

    assert setting(unit(config), "TimeoutStopSec") == "150"


def test_a_path_stays_one_argument_of_the_command_line() -> None:
    odd = Path('/srv/100% of "it"/$HOME/node.yaml')

    assert setting(unit(node=odd), "ExecStart").endswith(
        r'--config "/srv/100%% of \"it\"/$$HOME/node.yaml"'
    )


def test_a_unit_is_made_of_three_sections() -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(unit())

    assert parser.sections() == ["Unit", "Service", "Install"]


def test_the_daemons_files_are_private_and_its_cgroups_are_delegated() -> None:
    lines = unit_text(NodeConfig(), Path("/p"), Path("/n"), ENVIRONMENT, "root").splitlines()

    wanted = {"RuntimeDirectoryMode=0700", "UMask=0077", "Delegate=yes", "DelegateSubgroup=daemon"}
    assert wanted <= set(lines)


@pytest.mark.parametrize("user", ["root", "daemon"])
def test_systemd_accepts_the_unit(tmp_path: Path, user: str) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed: the unit was not verified")
    text = unit_text(NodeConfig(), Path(sys.executable), tmp_path / "a b.yaml", ENVIRONMENT, user)
    path = tmp_path / "disagg-node.service"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([tool, "verify", str(path)], capture_output=True, text=True, check=False)

    # Versions before 254 log that they do not know this, and continue without.
    said = [line for line in done.stderr.splitlines() if "'DelegateSubgroup'" not in line]
    assert (done.returncode, said) == (0, [])


@pytest.mark.parametrize("name", ["gpu-7", 'a "b": c', "on", "7", "\U0001f680"])
def test_a_new_node_file_is_valid(name: str) -> None:
    config = parse(starter_text(name, name), "node.yaml")
    assert config.attach is not None, "it measures what it finds before anybody fills it in"

    assert (config.node, config.cluster, config.on_sigterm) == (name, name, "leave")
    assert config.run_folder == Path("/run/disagg-node")


def test_the_example_in_a_new_node_file_is_valid_when_uncommented(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=workers:|  )", "", starter_text("gpu-7"), flags=re.MULTILINE)
    config = parse(text.replace("/srv/vllm/bin/python", sys.executable), "node.yaml")

    assert [worker.name for worker in config.workers] == ["prefill-0", "decode-0"]
