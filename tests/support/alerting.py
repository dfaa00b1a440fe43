"""A real Alertmanager on our example, a Prometheus that pages through it, and the notifications."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from disagg_cluster.demo.nodefile import free_ports
from disagg_cluster.prometheus.local_server import ScrapeTarget, prepare_prometheus, scrape_config
from support.alert_rules import ALERTS, RULE_FILES, groups, hasten
from support.http_serving import serving


@dataclass(slots=True)
class Inbox:
    """What reached the webhooks: receiver and labels of every alert that was sent as firing."""

    url: str
    told: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def names(self, receiver: str) -> set[tuple[str, str, str]]:
        """Return name, node and worker of the alerts that one receiver got."""
        return {
            (labels["alertname"], labels.get("node", ""), labels.get("worker", ""))
            for to, labels in list(self.told)
            if to == receiver
        }


@contextlib.contextmanager
def inbox() -> Iterator[Inbox]:
    """Listen for webhooks until the block ends."""

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for alert in body["alerts"]:
                if alert["status"] == "firing":
                    found.told.append((body["receiver"], alert["labels"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serving(Hook) as url:
        found = Inbox(url)
        yield found


@contextlib.contextmanager
def alertmanager(folder: Path, hooks: str) -> Iterator[str]:
    """Run an Alertmanager on the shipped example, with our webhooks and short waits."""
    config = yaml.safe_load((ALERTS / "alertmanager.yaml").read_text(encoding="utf-8"))
    config["route"] |= {"group_wait": "1s", "group_interval": "1s"}
    for receiver in config["receivers"]:
        receiver["webhook_configs"][0]["url"] = f"{hooks}/{receiver['name']}"
    path = folder / "alertmanager.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    argv = [
        "prometheus-alertmanager",
        f"--config.file={path}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={listen}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    with _running(argv, folder / "alertmanager.log"):
        yield f"http://{listen}"


@contextlib.contextmanager
def paging_prometheus(
    folder: Path, targets: Sequence[ScrapeTarget], pager: str, divisor: float
) -> Iterator[str]:
    """Run a Prometheus that scrapes every second, on the shipped rules with their times divided."""
    rules = folder / "rules"
    rules.mkdir()
    for path in RULE_FILES:
        text = yaml.safe_dump({"groups": hasten(groups(path), divisor)})
        (rules / path.name).write_text(text, encoding="utf-8")
    text = scrape_config(targets, interval_seconds=1.0, rule_files=[f"{rules}/*.yaml"])
    config = yaml.safe_load(text)
    to = [{"static_configs": [{"targets": [pager.removeprefix("http://")]}]}]
    config["alerting"] = {"alertmanagers": to}
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    launch = prepare_prometheus(
        Path("prometheus"), folder / "prometheus", yaml.safe_dump(config), listen=listen
    )
    with _running(launch.argv, folder / "prometheus.log"):
        yield launch.url


def alerts_of(pager: str) -> dict[tuple[str, str], str]:
    """Return an Alertmanager's state of each alert (name, worker): active or suppressed."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{pager}/api/v2/alerts", timeout=5) as answer:
        alerts: list[dict[str, Any]] = json.load(answer)
    return {
        (alert["labels"]["alertname"], alert["labels"].get("worker", "")): alert["status"]["state"]
        for alert in alerts
    }


@contextlib.contextmanager
def _running(argv: Sequence[str], log_path: Path) -> Iterator[None]:
    with log_path.open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()
