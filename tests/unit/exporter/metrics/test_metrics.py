import dataclasses
import math
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from disagg_exporter.metrics.family import Data, Family, MetricType
from disagg_exporter.metrics.table import FAMILIES, LABELS
from disagg_exporter.model import (
    ActivityCell,
    Cell,
    Device,
    DeviceAccount,
    DeviceFailure,
    EngineAccount,
    EnginePage,
    EngineState,
    Method,
    Phase,
    Reason,
    Role,
    Snapshot,
    StepTotals,
    TokenAccount,
    Unit,
    Use,
)
from support.client_metrics import render
from support.snapshots import FRESH_UNTIL_NS, GPU_0, GPU_1, GPU_2, TAKEN_NS, golden_snapshot

DATA = Path(__file__).parents[3] / "data"
STALE_NS = FRESH_UNTIL_NS + 1


def samples(snapshot: Snapshot | None, name: str, now_ns: int = TAKEN_NS) -> dict[str, float]:
    """Return the rows of one family, each under its label values joined by `/`, in table order."""
    family = next(family for family in FAMILIES if family.name == name)
    return {
        "/".join(sample.labels[label] for label in family.labels): sample.value
        for metric in render(snapshot, now_ns)
        for sample in metric.samples
        if sample.name == name
    }


def names(snapshot: Snapshot | None, now_ns: int) -> set[str]:
    return {
        metric.name if metric.type == "histogram" else sample.name
        for metric in render(snapshot, now_ns)
        for sample in metric.samples
    }


def page(snapshot: Snapshot | None, now_ns: int) -> str:
    class Rendered(Collector):
        def collect(self) -> list[Metric]:
            return list(render(snapshot, now_ns))

    return generate_latest(Rendered()).decode()


# The table


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_family_keeps_the_naming_rules(family: Family) -> None:
    """Prefix, no colon, counters end in _total and nothing else does, unit last, real help.

    Metrics of the daemon's own process have the names of all client libraries.
    """
    prefix = "process" if family.data is Data.PROCESS else "disagg"
    assert re.fullmatch(rf"{prefix}(_[a-z]+)+", family.name)
    assert family.name.endswith("_total") == (family.kind is MetricType.COUNTER)
    assert family.name.endswith("_info") == (family.kind is MetricType.INFO)
    assert not re.search(r"_(count|sum|bucket|created|gauge|counter|percent|ms)$", family.name)

    stem = family.name.removesuffix("_total")
    assert not family.unit or stem.endswith("_" + family.unit)
    base_units = {"seconds", "bytes", "watts", "hertz", "ratio", "tokens", "gpus", "joules"}
    base_units.add("celsius")
    assert family.unit in base_units | {""}
    assert family.unit or not any(stem.endswith("_" + unit) for unit in base_units)

    assert family.help.endswith(".")
    assert "|" not in family.help  # it is in a Markdown table


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_label_collides_with_those_of_the_scraper(family: Family) -> None:
    """The planner exports about other nodes, and sets `node` for them."""
    scrapers = {"node", "cluster", "instance", "job", "pod", "namespace", "container", "le"}
    if family.name.startswith(("disagg_bottleneck", "disagg_rebalance_advised")):
        scrapers -= {"node"}

    assert scrapers.isdisjoint(family.labels)
    assert len(set(family.labels)) == len(family.labels)
    assert set(family.labels) <= set(LABELS)


def test_names_are_unique_and_every_explained_label_is_used() -> None:
    assert Counter(family.name for family in FAMILIES).most_common(1)[0][1] == 1

    assert {label for family in FAMILIES for label in family.labels} == set(LABELS)


# What is rendered, against the table


def test_the_golden_node_shows_every_family_of_the_table() -> None:
    """Dashboards and rules are checked against its page, so nothing may be missing there."""
    of_nodes = {family.name for family in FAMILIES if family.data is not Data.PLANNER}

    assert names(golden_snapshot(), TAKEN_NS) == of_nodes


def test_rendered_metrics_match_the_table() -> None:
    table = {family.name: family for family in FAMILIES}

    for metric in render(golden_snapshot(), TAKEN_NS):
        for sample in metric.samples:
            family = table[metric.name if metric.type == "histogram" else sample.name]
            assert metric.type == family.kind.value
            assert metric.documentation == family.help
            assert metric.unit == family.unit or family.kind is MetricType.INFO
            assert tuple(label for label in sample.labels if label != "le") == family.labels


def test_no_row_is_rendered_twice() -> None:
    rows = Counter(
        (sample.name, *sample.labels.items())
        for metric in render(golden_snapshot(), TAKEN_NS)
        for sample in metric.samples
    )

    assert rows.most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("file", "now_ns"), [("golden_page.prom", TAKEN_NS), ("golden_page_stale.prom", STALE_NS)]
)
def test_the_page_is_the_golden_one(file: str, now_ns: int) -> None:
    """Rewritten with DISAGG_WRITE_GOLDEN=1; read the difference before committing it."""
    actual = page(golden_snapshot(), now_ns)
    if os.environ.get("DISAGG_WRITE_GOLDEN") == "1":
        (DATA / file).write_text(actual)

    assert actual == (DATA / file).read_text()


# Freshness


def test_a_stale_snapshot_leaves_only_what_makes_the_failure_visible() -> None:
    lasting = {family.name for family in FAMILIES if family.data.lasting}

    assert names(golden_snapshot(), STALE_NS) == lasting
    assert all("_gpu_" not in name and "_engine_" not in name for name in lasting)
    assert "disagg_collector_success" in lasting


def test_the_last_fresh_instant_still_shows_everything() -> None:
    snapshot = golden_snapshot()

    assert page(snapshot, FRESH_UNTIL_NS) == page(snapshot, TAKEN_NS)


def test_before_the_first_snapshot_the_page_has_only_the_build_info() -> None:
    assert names(None, 0) == {"disagg_build_info"}


def test_only_a_simulated_node_has_the_simulated_info() -> None:
    real = dataclasses.replace(golden_snapshot(), simulated=False)

    assert "disagg_simulated_info" in names(golden_snapshot(), STALE_NS)
    assert "disagg_simulated_info" not in names(real, TAKEN_NS)


# Absence


def test_a_value_the_driver_does_not_report_is_absent_not_zero() -> None:
    power = samples(golden_snapshot(), "disagg_gpu_power_watts")
    memory = samples(golden_snapshot(), "disagg_gpu_memory_used_bytes")

    assert GPU_1 not in power
    assert memory[GPU_1] == 0.0


def test_a_device_that_failed_keeps_its_account_and_has_no_readings() -> None:
    snapshot = golden_snapshot()

    assert GPU_2 not in samples(snapshot, "disagg_gpu_memory_total_bytes")
    assert samples(snapshot, "disagg_gpu_unobserved_seconds_total")[f"{GPU_2}/no_reading"] == 15.0


def test_an_engine_without_records_shows_the_load_of_its_page_only() -> None:
    requests = samples(golden_snapshot(), "disagg_engine_requests")

    assert requests["decode-0/decode/running"] == 18.0
    assert "decode-0/decode/deferred" not in requests
    assert requests["prefill-0/prefill/deferred"] == 0.0


def test_an_engine_without_reports_has_no_load() -> None:
    golden = golden_snapshot()
    silent = dataclasses.replace(
        golden, engines=tuple(dataclasses.replace(e, page=None) for e in golden.engines)
    )

    assert "decode-0/decode/running" not in samples(silent, "disagg_engine_requests")
    assert samples(silent, "disagg_engine_up")["decode-0"] == 0.0


def test_an_engine_that_could_not_be_probed_is_neither_up_nor_down() -> None:
    golden = golden_snapshot()
    unknown = dataclasses.replace(
        golden, engines=tuple(dataclasses.replace(e, up=None) for e in golden.engines)
    )

    assert samples(unknown, "disagg_engine_up") == {}


def test_a_worker_that_does_not_run_has_no_start_time() -> None:
    assert set(samples(golden_snapshot(), "disagg_worker_start_timestamp_seconds")) == {"prefill-0"}


def test_an_engine_that_is_gone_serves_no_device() -> None:
    golden = golden_snapshot()
    gone = tuple(dataclasses.replace(e, state=EngineState.GONE) for e in golden.engines)

    assert not samples(dataclasses.replace(golden, engines=gone), "disagg_gpu_assignment_info")


def test_the_last_errors_of_a_lost_gpu_are_shown() -> None:
    """The alert on Xid 79 (fallen off the bus) would miss it otherwise."""
    golden = golden_snapshot()
    left = tuple(reading for reading in golden.readings if reading.gpu != GPU_1)
    lost = DeviceFailure(GPU_1, "GPU is lost", ((79, 1),))

    shown = samples(
        dataclasses.replace(golden, readings=left, failures=(lost,)), "disagg_gpu_xid_errors_total"
    )

    assert shown[f"{GPU_1}/79"] == 1
    assert shown[f"{GPU_1}/48"] == 0


def test_a_node_without_a_router_has_no_router_rows() -> None:
    without = dataclasses.replace(golden_snapshot(), router=None)

    assert not [name for name in names(without, TAKEN_NS) if "_router_" in name]


def test_a_router_whose_page_cannot_be_read_keeps_its_counters_alone() -> None:
    golden = golden_snapshot()
    assert golden.router is not None
    silent = dataclasses.replace(golden, router=dataclasses.replace(golden.router, page=None))

    assert {name for name in names(silent, TAKEN_NS) if "_router_" in name} == {
        "disagg_router_requests_total",
        "disagg_router_prefill_errors_total",
        "disagg_router_decode_errors_total",
    }


def test_an_engine_known_only_to_the_router_is_labelled_with_its_url() -> None:
    golden = golden_snapshot()
    assert golden.router is not None
    nameless = dataclasses.replace(golden, router=dataclasses.replace(golden.router, engines=()))

    assert samples(nameless, "disagg_router_worker_health") == {
        "http://127.0.0.1:8100": 1.0,
        "http://127.0.0.1:8200": 0.0,
    }


# Rows that exist at 0


def test_router_error_counters_are_0_before_the_first_error() -> None:
    assert samples(golden_snapshot(), "disagg_router_decode_errors_total") == {"decode-0": 0.0}
    assert samples(golden_snapshot(), "disagg_router_prefill_errors_total") == {"prefill-0": 3.0}


def test_a_new_device_has_all_role_and_phase_pairs_at_zero() -> None:
    """So that rate() sees the first increase, also after a change of role."""
    device = Device("GPU-x", 0, "H100", "nvidia0")
    new = Snapshot(0, 0.0, 1, (device,), accounts=(DeviceAccount(device, Role.NONE, 0, 0, {}),))

    rows = samples(new, "disagg_gpu_phase_seconds_total", now_ns=0)

    assert set(rows.values()) == {0.0}
    assert set(rows) == {
        f"GPU-x/{role}/{phase}"
        for role in ("prefill", "decode", "mixed", "none")
        for phase in ("prefill", "decode", "idle", "unattributed")
    }


def test_a_model_has_its_node_rows_before_its_first_step() -> None:
    golden = golden_snapshot()
    idle = Cell(Role.NONE, Use.IDLE, Reason.NO_ENGINE)
    before = dataclasses.replace(
        golden,
        accounts=tuple(
            dataclasses.replace(a, slice_ns={idle: 7_000_000_000}) for a in golden.accounts
        ),
    )

    rows = samples(before, "disagg_node_phase_seconds_total")

    assert rows["prefill/prefill/llama/NVIDIA H100 80GB HBM3/"] == 0.0
    assert rows["none/idle//NVIDIA H100 80GB HBM3/"] == 2.0


def test_a_models_node_rows_stay_when_its_engines_are_gone() -> None:
    alone = dataclasses.replace(golden_snapshot(), engines=(), engine_accounts=())

    rows = samples(alone, "disagg_node_phase_seconds_total")

    assert set(rows) == set(samples(golden_snapshot(), "disagg_node_phase_seconds_total"))
    assert rows["mixed/decode/llama/NVIDIA H100 80GB HBM3/"] == 0.0


def test_a_draining_engines_rows_of_its_role_stay() -> None:
    """Its account has the role `none` then, and may not have moved yet."""
    golden = golden_snapshot()
    draining = EngineAccount("decode-0", Role.NONE, "llama", "", 0, Method.STEPS, {}, {})

    rows = samples(
        dataclasses.replace(golden, engine_accounts=(draining,)), "disagg_engine_phase_tokens_total"
    )

    assert rows == {"decode-0/decode/prefill": 0.0, "decode-0/decode/decode": 0.0}


TRTLLM_PAGE = EnginePage("trtllm", 0, generation_tokens_total=0.0)
SGLANG_PAGE = EnginePage(
    "sglang", 0, generation_tokens_total=0.0, computed_tokens_total=0.0, decode_seconds_total=0.0
)


@pytest.mark.parametrize(
    ("method", "page", "phases"),
    [
        (Method.STEPS, None, {"prefill", "decode"}),
        (Method.FPM, None, {"prefill", "decode"}),
        (Method.ENGINE_TIMERS, SGLANG_PAGE, {"prefill", "decode"}),
        # It counts prompts only at their ends, including those whose KV came from elsewhere.
        (Method.PAGE, TRTLLM_PAGE, {"decode"}),
        (Method.PAGE, None, set()),
        (Method.FOLLOWER, None, set()),
        (Method.ROLE, TRTLLM_PAGE, set()),
        (Method.NONE, None, set()),
    ],
)
def test_token_counters_start_at_0_only_where_their_source_reports_tokens(
    method: Method, page: EnginePage | None, phases: set[str]
) -> None:
    golden = golden_snapshot()
    account = EngineAccount("decode-0", Role.MIXED, "llama", "", 0, method, {}, {})
    [status] = [engine for engine in golden.engines if engine.engine == "decode-0"]
    snapshot = dataclasses.replace(
        golden,
        engine_accounts=(account,),
        engines=(dataclasses.replace(status, page=page, role=Role.MIXED),),
        tokens=(TokenAccount(Role.MIXED, Phase.PREFILL, "llama", "", 0),),
    )

    of_engine = samples(snapshot, "disagg_engine_phase_tokens_total")
    of_node = samples(snapshot, "disagg_node_phase_tokens_total")
    assert of_engine == {f"decode-0/mixed/{phase}": 0.0 for phase in phases}
    assert of_node == {f"mixed/{phase}/llama/": 0.0 for phase in phases}
    # Rules treat a node without this series as one of an older version.
    assert samples(snapshot, "disagg_node_token_gpu_seconds_total") == {"mixed/prefill/llama/": 0.0}
    assert bool(samples(snapshot, "disagg_engine_steps_total")) is method.by_step


def test_tokens_that_were_counted_stay_when_their_source_is_gone() -> None:
    golden = golden_snapshot()
    counted = {(Role.MIXED, Phase.DECODE): 9}
    account = EngineAccount("decode-0", Role.MIXED, "llama", "", 0, Method.NONE, {}, counted)

    rows = samples(
        dataclasses.replace(golden, engine_accounts=(account,)), "disagg_engine_phase_tokens_total"
    )
    assert rows == {"decode-0/mixed/decode": 9.0}


def test_the_zeros_of_an_engine_that_has_reported_steps_stay_when_it_is_gone() -> None:
    """A counter that ends and returns begins with the value it shows then."""
    golden = golden_snapshot()
    counted, steps = {(Role.DECODE, Phase.DECODE): 9}, StepTotals(steps=(0, 3, 0, 0))
    account = EngineAccount(
        "decode-0", Role.DECODE, "llama", "", 0, Method.NONE, {}, counted, steps
    )
    snapshot = dataclasses.replace(golden, engine_accounts=(account,), tokens=())

    of_engine = samples(snapshot, "disagg_engine_phase_tokens_total")
    of_node = samples(snapshot, "disagg_node_phase_tokens_total")

    assert of_engine == {"decode-0/decode/decode": 9.0, "decode-0/decode/prefill": 0.0}
    assert of_node == {"decode/decode/llama/": 0.0, "decode/prefill/llama/": 0.0}


def test_an_unannounced_worker_state_is_still_shown() -> None:
    unannounced = dataclasses.replace(golden_snapshot(), worker_states=("ready",))

    states = samples(unannounced, "disagg_worker_state")

    assert states["decode-0/backoff"] == 1.0
    assert states["decode-0/ready"] == 0.0


def test_a_reported_unit_of_activity_is_zero_for_every_role() -> None:
    rows = samples(golden_snapshot(), "disagg_gpu_activity_seconds_total")

    assert rows[f"{GPU_0}/prefill/tensor"] == 30.25
    assert rows[f"{GPU_0}/decode/tensor"] == rows[f"{GPU_0}/none/tensor"] == 0.0
    assert not [row for row in rows if row.startswith(GPU_1)]


def test_energy_is_zero_for_every_role_or_absent_if_unreported() -> None:
    rows = samples(golden_snapshot(), "disagg_gpu_phase_energy_joules_total")

    assert rows[f"{GPU_0}/prefill/prefill"] == 36_150.0
    assert rows[f"{GPU_0}/decode/decode"] == rows[f"{GPU_0}/none/unobserved"] == 0.0
    assert not [row for row in rows if not row.startswith(GPU_0)]


def test_memory_errors_are_absent_without_ecc_and_zero_with_it() -> None:
    rows = samples(golden_snapshot(), "disagg_gpu_ecc_errors_total")

    assert rows == {f"{GPU_0}/corrected": 2.0, f"{GPU_0}/uncorrected": 0.0}


# Sums

CELLS = st.dictionaries(
    st.builds(
        Cell,
        st.sampled_from(Role),
        st.sampled_from(Use),
        st.sampled_from(Reason),
        st.sampled_from(["", "llama", "qwen"]),
        st.sampled_from(["", "team-a"]),
    ),
    st.integers(0, 10**19),
    max_size=12,
)


def sums(metrics: list[Metric], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Sum the rows of one family by some of its labels, leaving out what is 0."""
    totals: dict[tuple[str, ...], float] = {}
    for sample in (sample for metric in metrics for sample in metric.samples):
        if sample.name == name:
            key = tuple(sample.labels[label] for label in labels)
            totals[key] = totals.get(key, 0.0) + sample.value
    return {key: total for key, total in totals.items() if total}


@given(st.lists(st.tuples(st.sampled_from(["H100", "L20"]), CELLS), max_size=3))
def test_node_seconds_are_the_sum_of_the_devices(
    nodes: list[tuple[str, dict[Cell, int]]],
) -> None:
    """Invariant (d), for every role and phase, and for idle and unobserved seconds by reason."""
    accounts = tuple(
        DeviceAccount(Device(f"GPU-{i}", i, name, f"nvidia{i}"), Role.NONE, 0, 0, cells)
        for i, (name, cells) in enumerate(nodes)
    )
    given_slice_ns = sum(
        slice_ns
        for account in accounts
        for cell, slice_ns in account.slice_ns.items()
        if cell.use is not Use.UNOBSERVED
    )

    metrics = list(render(Snapshot(0, 0.0, 1, accounts=accounts), now_ns=0))

    by_node = sums(metrics, "disagg_node_phase_seconds_total", "role", "phase")
    by_device = sums(metrics, "disagg_gpu_phase_seconds_total", "role", "phase")
    assert by_node == pytest.approx(by_device, rel=1e-12)
    assert math.fsum(by_node.values()) == pytest.approx(given_slice_ns / 7e9, rel=1e-12)
    assert sums(metrics, "disagg_node_idle_seconds_total", "reason") == pytest.approx(
        sums(metrics, "disagg_gpu_idle_seconds_total", "reason"), rel=1e-12
    )
    assert sums(metrics, "disagg_node_unobserved_seconds_total", "reason") == pytest.approx(
        sums(metrics, "disagg_gpu_unobserved_seconds_total", "reason"), rel=1e-12
    )


ENERGY = st.dictionaries(
    st.builds(
        Cell,
        st.sampled_from(Role),
        st.sampled_from(Use),
        st.just(Reason.NONE),
        st.sampled_from(["", "llama"]),
    ),
    st.integers(0, 10**19),
    max_size=8,
)
ACTIVITY = st.dictionaries(
    st.builds(
        ActivityCell,
        st.sampled_from(Role),
        st.sampled_from(Unit),
        st.sampled_from(["", "llama"]),
    ),
    st.integers(0, 10**19),
    max_size=8,
)


@given(st.lists(st.tuples(ACTIVITY, st.none() | ENERGY), max_size=3))
def test_node_energy_and_activity_are_the_sums_of_the_devices(
    devices: list[tuple[dict[ActivityCell, int], dict[Cell, int] | None]],
) -> None:
    """Invariant (d); a device that reports no energy adds none."""
    accounts = tuple(
        DeviceAccount(
            Device(f"GPU-{i}", i, "H100", f"nvidia{i}"),
            Role.NONE,
            0,
            0,
            {},
            active_slice_ns=activity,
            microjoules=energy,
        )
        for i, (activity, energy) in enumerate(devices)
    )

    metrics = list(render(Snapshot(0, 0.0, 1, accounts=accounts), now_ns=0))

    for node, device, labels in (
        (
            "disagg_node_activity_seconds_total",
            "disagg_gpu_activity_seconds_total",
            ("role", "unit"),
        ),
        (
            "disagg_node_energy_joules_total",
            "disagg_gpu_phase_energy_joules_total",
            ("role", "phase"),
        ),
    ):
        of_devices = sums(metrics, device, *labels)
        assert sums(metrics, node, *labels) == pytest.approx(of_devices, rel=1e-12)
    given_microjoules = sum(told for _, energy in devices for told in (energy or {}).values())
    assert math.fsum(sums(metrics, "disagg_node_energy_joules_total").values()) == pytest.approx(
        given_microjoules / 1e6, rel=1e-12
    )


def test_node_tokens_outlive_the_engines_that_computed_them() -> None:
    golden = golden_snapshot()

    with_engines = samples(golden, "disagg_node_phase_tokens_total")
    without = samples(
        dataclasses.replace(golden, engine_accounts=(), engines=()),
        "disagg_node_phase_tokens_total",
    )

    assert with_engines == {
        "prefill/prefill/llama/": 123_456.0,
        "prefill/decode/llama/": 42.0,
        # Known by its role alone, the decode engine reports no tokens of prefill: not 0.
        "decode/decode/llama/": 9_500.0,
    }
    assert without == {row: value for row, value in with_engines.items() if value}


def test_role_gpus_count_a_slice_as_its_share() -> None:
    rows = samples(golden_snapshot(), "disagg_node_role_gpus")

    assert rows["none/NVIDIA A100 MIG 3g.20gb"] == pytest.approx(3 / 7)
    assert rows["mixed/NVIDIA H100 80GB HBM3"] == 0.0


# Text


def test_an_unencodable_name_does_not_fail_the_page() -> None:
    golden = golden_snapshot()
    odd = dataclasses.replace(golden.engines[0], model_name='/models/\udce9t\u00e9\n"x"')

    text = page(dataclasses.replace(golden, engines=(odd,)), TAKEN_NS)

    assert 'model_name="/models/?t\u00e9\\n\\"x\\""' in text


def test_activity_gpu_seconds_cover_only_devices_and_times_of_which_activity_was_read() -> None:
    """Half of the node reports no activity: its seconds are in no activity ratio."""
    observed = samples(golden_snapshot(), "disagg_node_activity_gpu_seconds_total")

    h100 = "llama/NVIDIA H100 80GB HBM3/"
    # All of GPU 0 in this role; 80 of decode of GPU 1 are not.
    assert observed[f"prefill/sm/{h100}"] == 74.0
    assert observed[f"decode/sm/{h100}"] == 0.0
    activity = samples(golden_snapshot(), "disagg_node_activity_seconds_total")
    assert set(observed) == set(activity)
