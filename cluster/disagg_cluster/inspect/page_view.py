"""A node's own metrics page, read back: what it says of devices, engines and collectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.inspect.views import DeviceView, EngineView, NodePage
from disagg_exporter.errors import DisaggError


class NotOurPageError(DisaggError):
    """What was read is no page of a disagg-node."""


_Samples = dict[str, list[tuple[Mapping[str, str], float]]]


def read_node_page(text: bytes) -> NodePage:
    """Read a page of ours.

    Raises:
        NotOurPageError: It is none.
    """
    samples: _Samples = {}
    try:
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except (ValueError, IndexError) as error:
        raise NotOurPageError(f"this is no metrics page: {ascii(str(error))[:100]}") from None
    build = next((labels for labels, _ in samples.get("disagg_build_info", ())), None)
    if build is None:
        raise NotOurPageError("this metrics page is not one of disagg-node")
    return NodePage(
        version=build.get("version", ""),
        simulated="disagg_simulated_info" in samples,
        devices=tuple(_devices(samples)),
        engines=tuple(_engines(samples)),
        collectors={
            labels.get("collector", ""): value > 0
            for labels, value in samples.get("disagg_collector_success", ())
        },
        left_out_engines=round(sum(v for _, v in samples.get("disagg_left_out_engines", ()))),
    )


def _devices(samples: _Samples) -> Iterator[DeviceView]:
    for labels, _ in samples.get("disagg_gpu_info", ()):
        yield DeviceView(
            labels.get("gpu", ""), labels.get("device", ""), labels.get("gpu_name", "")
        )


def _engines(samples: _Samples) -> Iterator[EngineView]:
    up = _by(samples, "disagg_engine_up", "engine")
    registered = _by(samples, "disagg_engine_registered", "engine")
    residual = _by(samples, "disagg_attribution_residual_ratio", "engine")
    fitted = _by(samples, "disagg_attribution_fitted_steps", "engine")
    lost = _by(samples, "disagg_lost_records_total", "engine")
    followers = samples.get("disagg_engine_follower_info", ())
    leaders = {labels.get("engine", ""): labels.get("leader", "") for labels, _ in followers}
    tls = {labels["engine"]: labels for labels, _ in samples.get("disagg_engine_tls_info", ())}
    how = {labels["engine"]: labels for labels, _ in samples.get("disagg_attribution_info", ())}
    assigned: dict[str, list[Mapping[str, str]]] = {}
    for labels, _ in samples.get("disagg_gpu_assignment_info", ()):
        assigned.setdefault(labels.get("engine", ""), []).append(labels)
    for labels, _ in samples.get("disagg_engine_info", ()):
        name = labels.get("engine", "")
        rows = assigned.get(name, [])
        first = rows[0] if rows else {}
        yield EngineView(
            engine=name,
            role=labels.get("role", ""),
            model_name=labels.get("model_name", ""),
            kind=labels.get("kind", ""),
            version=labels.get("version", ""),
            up=up.get(name, 0.0) > 0 or name in leaders,
            source=first.get("source", ""),
            confidence=first.get("confidence", ""),
            pod=first.get("engine_pod", ""),
            namespace=first.get("engine_namespace", ""),
            gpus=tuple(row.get("gpu", "") for row in rows),
            method=how.get(name, {}).get("method", "none"),
            split=how.get(name, {}).get("split", "none"),
            share_confidence=how.get(name, {}).get("confidence", ""),
            residual_ratio=residual.get(name),
            fitted_steps=fitted.get(name),
            lost_records=lost.get(name, 0.0),
            registered=registered[name] > 0 if name in registered else None,
            follows=leaders.get(name),
            verified=tls.get(name, {}).get("verified", ""),
            tls_fault=tls.get(name, {}).get("fault", ""),
        )


def _by(samples: _Samples, name: str, label: str) -> dict[str, float]:
    return {labels.get(label, ""): value for labels, value in samples.get(name, ())}
