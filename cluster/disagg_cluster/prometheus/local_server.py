"""A Prometheus for this node: its scrape config, and how to start it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

BINARY_ENVIRONMENT = "DISAGG_PROMETHEUS"
JOB = "disagg-node"
CONFIG_FILE = "prometheus.yaml"
HOW_TO_GET = (
    "Prometheus is not installed, so nothing is recorded. On Debian and Ubuntu: "
    "apt-get install prometheus. Elsewhere take a release from https://prometheus.io/download/ "
    f"and put its path into {BINARY_ENVIRONMENT}."
)


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """One metrics page to scrape. `cluster` and `node` become labels of all its series."""

    address: str
    node: str
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class PrometheusLaunch:
    """The command that starts it, and the URL where it will answer."""

    argv: tuple[str, ...]
    url: str
    config_file: Path


def scrape_config(
    targets: Sequence[ScrapeTarget],
    *,
    interval_seconds: float = 5.0,
    rule_files: Sequence[str] = (),
    scheme: str = "http",
    alertmanagers: Sequence[str] = (),
    cluster: str = "",
) -> str:
    """Return the configuration of a Prometheus that scrapes `targets` and evaluates our rules.

    Rules are evaluated as often as pages are scraped. `rule_files` may hold globs. An empty cluster
    gives no label: the rules then see one nameless cluster. `alertmanagers` are the addresses to
    which alerts are sent; `cluster` is added to every alert, and to everything sent to a central
    store, that has no such label.
    """
    interval = _duration(interval_seconds)
    statics = [
        {
            "targets": [target.address],
            "labels": {
                "node": target.node,
                **({"cluster": target.cluster} if target.cluster else {}),
            },
        }
        for target in targets
    ]
    job = {"job_name": JOB, "static_configs": statics}
    if scheme != "http":
        job["scheme"] = scheme
    config = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
            **({"external_labels": {"cluster": cluster}} if cluster else {}),
        },
        **({"alerting": alerting(alertmanagers)} if alertmanagers else {}),
        "rule_files": list(rule_files),
        "scrape_configs": [job],
    }
    return yaml.safe_dump(config, sort_keys=False)


def alerting(alertmanagers: Sequence[str]) -> dict[str, Any]:
    """Return the `alerting` block of a Prometheus that sends its alerts to some addresses."""
    return {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]}


def find_prometheus(environ: Mapping[str, str], which: Callable[[str], str | None]) -> Path | None:
    """Return the Prometheus to start: from the environment, else from the PATH, or None.

    If the configured one cannot be run, the result is also None: another would be a surprise.
    """
    found = which(environ.get(BINARY_ENVIRONMENT) or "prometheus")
    return None if found is None else Path(found)


def prepare_prometheus(
    binary: Path, folder: Path, config: str, *, listen: str, retention: str = "1d"
) -> PrometheusLaunch:
    """Write `config` into `folder` and return how to start `binary` on it; raises `OSError`.

    The data is in `folder` too. `listen` is `host:port`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config_file = folder / CONFIG_FILE
    config_file.write_text(config, encoding="utf-8")
    argv = prometheus_argv(binary, folder, listen=listen, retention=retention)
    return PrometheusLaunch(argv, f"http://{listen}", config_file)


def prometheus_argv(
    binary: Path, folder: Path, *, listen: str, retention: str = "1d"
) -> tuple[str, ...]:
    """Return the command of a Prometheus whose data and `CONFIG_FILE` are in `folder`."""
    return (
        str(binary),
        f"--config.file={folder / CONFIG_FILE}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--storage.tsdb.retention.time={retention}",
        f"--web.listen-address={listen}",
        "--log.level=warn",
    )


def _duration(seconds: float) -> str:
    """Return seconds as Prometheus writes them; it has no fractions."""
    milliseconds = round(seconds * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"
