"""Rows of the node's sums and of its router."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from disagg_exporter.metrics.device_rows import (
    REASONS,
    SHOWN_USES,
    STANDING_ROLES,
    engine_namespaces,
    present_engines,
)
from disagg_exporter.metrics.family import MetricRows
from disagg_exporter.model import (
    FORGOTTEN_MODEL,
    MICROJOULES_PER_JOULE,
    SLICE_NS_PER_GPU_SECOND,
    ActivityCell,
    Cell,
    DeviceAccount,
    Phase,
    Role,
    RouterCounts,
    RouterPage,
    RouterStatus,
    Snapshot,
    Use,
)

_PHASES = "disagg_node_phase_seconds_total"
_IDLE = "disagg_node_idle_seconds_total"
_UNOBSERVED = "disagg_node_unobserved_seconds_total"
_ACTIVITY = "disagg_node_activity_seconds_total"
_READ = "disagg_node_activity_gpu_seconds_total"
_ENERGY = "disagg_node_energy_joules_total"
_METERED = "disagg_node_energy_gpu_seconds_total"
_TOKEN_TIME = "disagg_node_token_gpu_seconds_total"

_Key = TypeVar("_Key", Cell, ActivityCell)

_Standing = dict[tuple[str, str], dict[Role, None]]
"""For each (model name, namespace): the roles whose rows exist at 0."""


def write_node(rows: MetricRows, snapshot: Snapshot) -> None:
    """Write the sums over devices, and over current and earlier engines."""
    for account in snapshot.accounts:
        gpu_name = account.device.gpu_name
        for role in STANDING_ROLES:
            rows.add("disagg_node_role_gpus", 0.0, role, gpu_name)
        rows.add("disagg_node_role_gpus", account.device.weight, account.role, gpu_name)
    served, sums = _served(snapshot), _SumsByRole(rows)
    for account in (*snapshot.accounts, *snapshot.removed_accounts):
        standing = _standing(account, served.get(account.device.gpu, {}))
        active = account.active_slice_ns
        units = dict.fromkeys(part.unit for part in active if part.model_name != FORGOTTEN_MODEL)
        sums.add(_PHASES, account, standing, SHOWN_USES, account.slice_ns)
        sums.add(_ACTIVITY, account, standing, units, active)
        sums.add(_READ, account, standing, units, account.read_slice_ns)
        if account.microjoules is not None:
            sums.add(_ENERGY, account, standing, tuple(Use), account.microjoules)
            sums.add(_METERED, account, standing, tuple(Use), account.metered_slice_ns)
        _add_idle(rows, account)
        _add_unobserved(rows, account)
    for name in (_PHASES, _IDLE, _UNOBSERVED, _ACTIVITY, _READ, _METERED):
        rows.divide(name, SLICE_NS_PER_GPU_SECOND)
    rows.divide(_ENERGY, MICROJOULES_PER_JOULE)
    for tokens in snapshot.tokens:
        key = (tokens.role, tokens.phase, tokens.model_name, tokens.engine_namespace)
        rows.add(_TOKEN_TIME, tokens.slice_ns, *key)
        if tokens.tokens:  # else no engine may have reported any
            rows.add("disagg_node_phase_tokens_total", tokens.tokens, *key)
    rows.divide(_TOKEN_TIME, SLICE_NS_PER_GPU_SECOND)
    for busy in snapshot.busy:
        rest = (busy.model_name, busy.gpu_name, busy.engine_namespace)
        rows.add("disagg_node_busy_gpus", busy.gpus, busy.role, busy.phase, *rest)
    if snapshot.busy_window_seconds > 0:
        rows.set("disagg_node_busy_window_seconds", snapshot.busy_window_seconds)
    if snapshot.gpu_price is not None:
        price = snapshot.gpu_price
        rows.set("disagg_node_gpu_hour_price", price.per_hour, price.currency)


class _SumsByRole:
    """Adds devices' amounts by role and by use or unit, the second field of either cell.

    Models whose names were forgotten are in no series of the node.
    """

    def __init__(self, rows: MetricRows) -> None:
        self._rows = rows
        # Most devices of a node serve the same models: their rows are created once.
        self._created: set[tuple[str, ...]] = set()

    def add(
        self,
        name: str,
        account: DeviceAccount,
        standing: _Standing,
        columns: Collection[str],
        amounts: Mapping[_Key, int],
    ) -> None:
        """Add a device's amounts; rows of its standing roles exist at 0."""
        gpu_name = account.device.gpu_name
        for (model_name, namespace), roles in standing.items():
            for role in roles:
                created = (name, role, model_name, gpu_name, namespace, *columns)
                if created not in self._created:
                    self._created.add(created)
                    for column in columns:
                        self._rows.add(name, 0, role, column, model_name, gpu_name, namespace)
        for cell, amount in amounts.items():
            if cell[1] in columns and cell.model_name != FORGOTTEN_MODEL:
                rest = (cell.model_name, gpu_name, cell.engine_namespace)
                self._rows.add(name, amount, cell.role, cell[1], *rest)


def _add_idle(rows: MetricRows, account: DeviceAccount) -> None:
    for cell, slice_ns in account.slice_ns.items():
        if cell.use is Use.IDLE and cell.model_name != FORGOTTEN_MODEL:
            rest = (cell.model_name, account.device.gpu_name, cell.engine_namespace)
            for reason in REASONS[Use.IDLE]:
                rows.add(_IDLE, 0, cell.role, reason, *rest)
            rows.add(_IDLE, slice_ns, cell.role, cell.reason, *rest)


def _add_unobserved(rows: MetricRows, account: DeviceAccount) -> None:
    gpu_name = account.device.gpu_name
    for reason in REASONS[Use.UNOBSERVED]:
        rows.add(_UNOBSERVED, 0, reason, gpu_name)
    for cell, slice_ns in account.slice_ns.items():
        if cell.use is Use.UNOBSERVED:
            rows.add(_UNOBSERVED, slice_ns, cell.reason, gpu_name)


def _served(snapshot: Snapshot) -> dict[str, _Standing]:
    """Return the standing roles of the engines that each device serves now, by device."""
    served: dict[str, _Standing] = {}
    namespaces = engine_namespaces(snapshot)
    for engine in present_engines(snapshot):
        pair = (engine.model_name, namespaces.get(engine.engine, ""))
        for gpu in engine.devices:
            served.setdefault(gpu, {})[pair] = dict.fromkeys(STANDING_ROLES)
    return served


def _standing(account: DeviceAccount, served: _Standing) -> _Standing:
    """Return the roles with rows at 0, per (model, namespace) that the device serves or served.

    Time without an engine has no model and no role but `none`.
    """
    standing = {("", ""): dict.fromkeys((Role.NONE,)), **served}
    for cell in account.slice_ns:
        if cell.model_name == FORGOTTEN_MODEL:
            continue
        pair = (cell.model_name, cell.engine_namespace)
        roles = dict.fromkeys(STANDING_ROLES if cell.model_name else ())
        standing[pair] = standing.get(pair, {}) | roles | {cell.role: None}
    return standing


_ROUTER_ERRORS = {
    Phase.PREFILL: "disagg_router_prefill_errors_total",
    Phase.DECODE: "disagg_router_decode_errors_total",
}


def write_router(rows: MetricRows, snapshot: Snapshot) -> None:
    """Write the router's counters and state; nothing on a node without one."""
    router = snapshot.router
    if router is None:
        return
    names = {engine.url: engine.name for engine in router.engines}
    if router.counts is not None:
        _write_router_counts(rows, router, router.counts, names)
    if router.page is not None:
        _write_router_page(rows, router.page, names)


def _write_router_counts(
    rows: MetricRows, router: RouterStatus, counts: RouterCounts, names: Mapping[str, str]
) -> None:
    rows.set("disagg_router_requests_total", counts.requests)
    # A router names an engine only with its first error, which `increase()` would miss.
    for engine in router.engines:
        rows.add(_ROUTER_ERRORS[engine.phase], 0.0, engine.name)
    for (phase, url), count in counts.errors.items():
        rows.add(_ROUTER_ERRORS[phase], count, names.get(url, url))


def _write_router_page(rows: MetricRows, page: RouterPage, names: Mapping[str, str]) -> None:
    for phase, requests in page.active.items():
        rows.set("disagg_router_active_requests", requests, phase)
    rows.set("disagg_router_pending_requests", page.pending)
    for url, well in page.worker_health.items():
        rows.set("disagg_router_worker_health", float(well), names.get(url, url))
