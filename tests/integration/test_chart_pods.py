"""Pods of the chart on this host: their arguments and files are those that the daemon takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bcrypt
import pytest

from support.certificates import server_certificate
from support.chart import values_of
from support.chart_pods import NODE, Pod
from support.children import free_port
from support.running_node import wait_for


@pytest.mark.parametrize("case", ["attach-default", "attach-least-rights"])
def test_an_attach_pod_is_ready_and_serves_its_pages(case: str, tmp_path: Path) -> None:
    values = values_of(case)
    # Foreign engines on this host are to be ignored.
    values.setdefault("attach", {})["nodeFile"] = {"attach": {"processes": False}}
    pod = Pod(values, tmp_path)

    with pod.running() as process:
        pod.wait_for_probes()
        if os.geteuid() == 0:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            assert "CapEff:\t0000000000000000\n" in status
        page, landing = pod.get("/metrics", "http"), pod.get("/", "http")
    # The host name of a pod is the name of the pod.
    assert NODE in (landing or "")
    assert page is not None
    assert "disagg_build_info" in page
    assert process.returncode == 0


def test_a_page_over_tls_requires_the_password(tmp_path: Path) -> None:
    users = {"prometheus": bcrypt.hashpw(b"sesame", bcrypt.gensalt(4)).decode()}
    certificate = server_certificate()
    secrets = {
        "/etc/disagg-web/tls.crt": certificate.cert_chain_pems[0].bytes(),
        "/etc/disagg-web/tls.key": certificate.private_key_pem.bytes(),
    }
    pod = Pod({"web": {"tlsSecret": "tls", "basicAuthUsers": users}}, tmp_path, secrets)

    with pod.running():
        pod.wait_for_probes()
        assert pod.get("/metrics", "https") is None
        assert pod.get("/metrics", "http", "prometheus:sesame") is None
        page = wait_for(lambda: pod.get("/metrics", "https", "prometheus:sesame"), "the page")
    assert "disagg_build_info" in page


def test_launch_starts_the_engines_of_its_node_file_and_ends_them_with_the_pod(
    tmp_path: Path,
) -> None:
    """A stand-in engine on a simulated GPU; the first process is ours, as in the container."""
    worker = {"name": "mixed-0", "role": "mixed", "engine": "standin", "gpus": 1, "model": "m"}
    worker |= {"port": free_port(), "python": sys.executable}
    node_file = {"devices": "sim", "sim_devices": 1, "workers": [worker]}
    groups = {"all": {"gpus": 1, "nodeFile": node_file}}
    pod = Pod({"profile": "launch", "launch": {"groups": groups}}, tmp_path)
    ready = 'disagg_worker_state{state="ready",worker="mixed-0"} 1'

    with pod.running() as process:
        pod.wait_for_probes()
        wait_for(lambda: ready in (pod.get("/metrics", "http") or ""), "the engine")
    assert process.returncode == 0


def test_the_planners_pod_is_ready_before_its_prometheus_has_any_load(tmp_path: Path) -> None:
    """An installation that waits for its pods would otherwise wait for users' requests."""
    config = {"prometheus": {"url": f"http://127.0.0.1:{free_port()}"}}
    pod = Pod({"planner": {"enabled": True, "config": config}}, tmp_path, is_planner=True)

    with pod.running() as process:
        pod.wait_for_probes()
        page = pod.get("/metrics", "http")
    assert "disagg_planner_build_info" in (page or "")
    assert process.returncode == 0
