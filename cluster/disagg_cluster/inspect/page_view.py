"""Parses a node's own metrics page: devices, engines and collectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from disagg_cluster.inspect.views import DeviceView, EngineView, NodePage
from disagg_exporter.engine_pages.exposition.layout import SeriesKeys
from disagg_exporter.engine_pages.exposition.lines import (
    PageError,
    SamplesByName,
    SeriesFilter,
    find,
)
from disagg_exporter.errors import DisaggError


class NotOurPageError(DisaggError):
    """The text is not a disagg-node's page."""


_BUILD, _SIMULATED = "disagg_build_info", "disagg_simulated_info"
_COLLECTORS, _LEFT_OUT = "disagg_collector_success", "disagg_left_out_engines"
_GPUS, _ASSIGNMENTS = "disagg_gpu_info", "disagg_gpu_assignment_info"
_ENGINES, _UP, _REGISTERED = "disagg_engine_info", "disagg_engine_up", "disagg_engine_registered"
_FOLLOWERS, _TLS = "disagg_engine_follower_info", "disagg_engine_tls_info"
_HOW, _LOST = "disagg_attribution_info", "disagg_lost_records_total"
_RESIDUAL, _FITTED = "disagg_attribution_residual_ratio", "disagg_attribution_fitted_steps"
_WANTED = SeriesFilter(
    (
        *(_BUILD, _SIMULATED, _COLLECTORS, _LEFT_OUT, _GPUS, _ASSIGNMENTS, _ENGINES, _UP),
        *(_REGISTERED, _FOLLOWERS, _TLS, _HOW, _LOST, _RESIDUAL, _FITTED),
    )
)


def read_node_page(text: bytes) -> NodePage:
    """Parse a page of ours.

    Raises:
        NotOurPageError: It is not one.
    """
    try:
        samples = find(text, _WANTED, SeriesKeys(), "disagg-node")
    except PageError as error:
        raise NotOurPageError(f"this is no metrics page: {ascii(str(error))[:100]}") from None
    build = next((labels for labels, _ in samples.get(_BUILD, ())), None)
    if build is None:
        raise NotOurPageError("this metrics page is not one of disagg-node")
    return NodePage(
        version=build.get("version", ""),
        simulated=_SIMULATED in samples,
        devices=tuple(_devices(samples)),
        engines=tuple(_engines(samples)),
        collectors={
            labels.get("collector", ""): value > 0 for labels, value in samples.get(_COLLECTORS, ())
        },
        left_out_engines=round(sum(v for _, v in samples.get(_LEFT_OUT, ()))),
    )


def _devices(samples: SamplesByName) -> Iterator[DeviceView]:
    for labels, _ in samples.get(_GPUS, ()):
        yield DeviceView(
            labels.get("gpu", ""), labels.get("device", ""), labels.get("gpu_name", "")
        )


def _engines(samples: SamplesByName) -> Iterator[EngineView]:
    up = _by(samples, _UP, "engine")
    registered = _by(samples, _REGISTERED, "engine")
    residual = _by(samples, _RESIDUAL, "engine")
    fitted = _by(samples, _FITTED, "engine")
    lost = _by(samples, _LOST, "engine")
    followers = samples.get(_FOLLOWERS, ())
    leaders = {labels.get("engine", ""): labels.get("leader", "") for labels, _ in followers}
    tls = {labels.get("engine", ""): labels for labels, _ in samples.get(_TLS, ())}
    how = {labels.get("engine", ""): labels for labels, _ in samples.get(_HOW, ())}
    pseudo = {each.gpu for each in _devices(samples) if each.device == "cpu"}
    assigned: dict[str, list[Mapping[str, str]]] = {}
    for labels, _ in samples.get(_ASSIGNMENTS, ()):
        assigned.setdefault(labels.get("engine", ""), []).append(labels)
    for labels, _ in samples.get(_ENGINES, ()):
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
            on_cpu=any(row.get("gpu") in pseudo for row in rows),
        )


def _by(samples: SamplesByName, name: str, label: str) -> dict[str, float]:
    return {labels.get(label, ""): value for labels, value in samples.get(name, ())}
