"""Instant queries to a real Prometheus without any of our code."""

from __future__ import annotations

import requests

from disagg_cluster.prometheus.prometheus_api import PrometheusError


def query(
    base_url: str, expr: str, deadline_seconds: float = 5.0
) -> list[tuple[dict[str, str], float]]:
    """Evaluate `expr` now: labels and value of each series; `PrometheusError` without an answer."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            answer = session.get(
                f"{base_url.rstrip('/')}/api/v1/query",
                params={"query": expr},
                timeout=deadline_seconds,
            ).json()
        except requests.RequestException as error:
            raise PrometheusError(str(error)) from error
    if answer["status"] != "success":
        raise PrometheusError(answer["error"])
    return [(dict(row["metric"]), float(row["value"][1])) for row in answer["data"]["result"]]
