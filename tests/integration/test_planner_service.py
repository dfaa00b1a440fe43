"""`disagg-node planner` behind TLS and a password, beside a real Prometheus that then goes away."""

from __future__ import annotations

import base64
import contextlib
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import bcrypt
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.backfill import Past, openmetrics, prometheus_with
from support.certificates import client_context, write_files
from support.children import free_port
from support.running_node import DISAGG_NODE, wait_for

pytestmark = pytest.mark.prometheus

HOUR = 3600
WORD = base64.b64encode(b"prometheus:first").decode()


def hashed(password: str) -> str:
    """Of the least cost that there is."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def past(now: int) -> str:
    """One model for eight hours."""
    start = now - 8 * HOUR
    labels = {"cluster": "east", "node": "n1", "model_name": "llama", "engine_namespace": ""}
    series = [
        Past(
            "disagg_node_phase_tokens_total",
            labels | {"role": phase, "phase": phase},
            lambda t, per_second=per_second: per_second * (t - start),  # type: ignore[misc] # a bound default
        )
        for phase, per_second in (("prefill", 1200.0), ("decode", 300.0))
    ]
    whose = {"cluster": "east", "node": "n1", "engine": "e0", "role": "prefill"}
    series.append(Past("disagg_engine_info", whose | {"model_name": "llama"}, lambda _t: 1.0))
    return openmetrics(series, range(start, now + 1, 15))


def samples(url: str, context: ssl.SSLContext) -> dict[tuple[str, ...], float]:
    """The page's samples by name and label values; nothing while nobody answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {WORD}"})
    with contextlib.suppress(urllib.error.URLError):
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            text = answer.read().decode()
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    return {}


def test_the_planner_forecasts_reports_a_lost_prometheus_and_runs_only_once(tmp_path: Path) -> None:
    web = {
        "tls_server_config": {"cert_file": "cert.pem", "key_file": "key.pem"},
        "basic_auth_users": {"prometheus": hashed("first")},
    }
    write_files(tmp_path, {"web.yml": yaml.safe_dump(web)})
    port, context = free_port(), client_context()
    root = f"https://127.0.0.1:{port}"
    file = tmp_path / "planner.yaml"
    command = (*DISAGG_NODE, "planner", "--config", str(file))
    (tmp_path / "prometheus").mkdir()
    with (tmp_path / "log").open("wb") as log, contextlib.ExitStack() as stack:
        running = prometheus_with(past(int(time.time())), tmp_path / "prometheus")
        with running as prometheus:
            told = {
                "cluster": "east",
                "prometheus": {"url": prometheus},
                "history": {"days": 0.5},
                "every_seconds": 10,
                "lock_file": "lock",
                "listen": {"metrics": f"127.0.0.1:{port}", "web_config": "web.yml"},
            }
            file.write_text(yaml.safe_dump(told))
            planner = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(planner.kill)
            near = ("disagg_forecast_tokens_per_second", "", "5m", "llama", "prefill", "0.5")
            found = wait_for(
                lambda: (page := samples(f"{root}/metrics", context)) and near in page and page,
                "a forecast",
                60,
            )
            assert found[near] == pytest.approx(1200, rel=0.01)
            undecided = ("disagg_plan_undecided", "", "24h", "llama", "short_history", "decode")
            assert found[undecided] == 1
            assert found["disagg_collector_success", "planner:history"] == 1
            diagnosed = ("disagg_collector_success", "planner:diagnosis")
            wait_for(
                lambda: samples(f"{root}/metrics", context).get(diagnosed) == 1,
                "a diagnosis",
                60,
            )
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{root}/metrics", timeout=10, context=context)

            second = subprocess.run(command, capture_output=True, text=True, check=False)
            assert second.returncode == 1
            assert f"another planner (pid {planner.pid}) holds {tmp_path / 'lock'}" in second.stderr

        failed = ("disagg_collector_success", "planner:history")
        wait_for(
            lambda: samples(f"{root}/metrics", context).get(failed) == 0,
            "the planner to say that Prometheus is gone",
            60,
        )
        planner.send_signal(signal.SIGTERM)
        assert planner.wait(20) == 0
    assert "no answer from http://127.0.0.1" in (tmp_path / "log").read_text()


def test_a_full_disk_under_its_log_does_not_end_the_planner(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "planner.yaml"
    told = {"listen": {"metrics": f"127.0.0.1:{port}"}, "lock_file": "lock"}
    file.write_text(yaml.safe_dump(told))
    command = (*DISAGG_NODE, "planner", "--config", str(file))

    with Path("/dev/full").open("wb") as full, contextlib.ExitStack() as stack:
        planner = stack.enter_context(subprocess.Popen(command, stdout=full, stderr=full))
        stack.callback(planner.kill)
        wait_for(lambda: planner.poll() is not None or answers(port), "the page, or the end", 30)
        assert planner.poll() is None
        planner.send_signal(signal.SIGTERM)
        assert planner.wait(20) == 0


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10).close()
        return True
    return False


def test_all_problems_of_an_invalid_planner_file_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "planner.yaml"
    file.write_text("evry_seconds: 60\nhistory: {days: 0}\n")

    done = subprocess.run(
        [*DISAGG_NODE, "planner", "--check", "-c", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}:1: evry_seconds" in done.stderr
    assert f"{file}:2: history.days" in done.stderr
