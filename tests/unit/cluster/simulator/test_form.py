"""A simulated engine's steps and page have the format of those captured from vLLM 0.32."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from disagg_cluster.simulator.cluster.spec import ClusterSpec
from disagg_cluster.simulator.load import Constant, Lengths, Mix
from disagg_cluster.simulator.simulation import Simulation
from disagg_exporter.engine_pages.parse import parse_page
from disagg_exporter.inside_engine.disagg_steps import counting, wire
from disagg_exporter.model import Step, StepTotals
from disagg_exporter.steps.messages import ControlMessage, MessageKind
from disagg_exporter.steps.rows import kind_of
from support.accounting import captured_steps
from support.captures import counts_of, elapsed_ns
from support.received_messages import messages_of
from support.simulations import TINY, SimulationEvents, StoppedLoad, alone, listen, pair

CAPTURES = Path(__file__).parents[3] / "data" / "vllm-0.32.0"
SECONDS = 12


@pytest.fixture(scope="module")
def events() -> SimulationEvents:
    """A pair as small as the captured one, with short prompts many of which share a prefix."""
    return _events(pair(model=TINY, kv_tokens=16384, block_tokens=32, longest_tokens=1024))


def _events(cluster: ClusterSpec) -> SimulationEvents:
    load = StoppedLoad(Constant(Mix(60, 90, 15)), 10)
    lengths = Lengths(0.5, 0.3, reuse_ratio=0.7, prefixes=6, prefix_tokens=64, longest_tokens=400)
    return listen(Simulation(cluster, load, lengths=lengths, seed=4), SECONDS)


def captured(name: str) -> list[Step]:
    """The captured rows as the plugin would have sent them and the daemon received them."""
    totals, steps = list(counting.NOTHING_YET), []
    for row in captured_steps(CAPTURES / f"{name}.steps.jsonl.gz"):
        facts = counting.Facts(
            elapsed_ns=elapsed_ns(row),
            cached_tokens=row["prompt"] - row["computed"] - row["ext"],
            kv_usage_ratio=row["kv"],
            **counts_of(row),
        )
        counting.count(totals, facts)
        t_ns = round(row["t"] * 1e9)
        head = (wire.VERSION, wire.STEP, 0, 1, 0, 0, 1, len(steps) + 1, t_ns)
        (message,) = messages_of([wire.encode(wire.Record(*head, *facts, *totals))])
        assert message.step is not None
        steps.append(message.step)
    return steps


def told_by_steps(events: SimulationEvents, role: str) -> list[Step]:
    """The records of a step, without those of a mere state."""
    return [step for step in events.steps(f"{role}-0") if step.elapsed_ns]


def shape(step: Step) -> tuple[object, ...]:
    """Which fields are 0 and how they relate: what a reader of records could rely on."""
    return (
        step.context_requests > 0,
        not step.computed_tokens and step.context_tokens == step.context_requests,
        step.context_tokens == step.computed_tokens,
        step.generation_requests > 0,
        step.generation_tokens == step.generation_requests,
        step.encoder_inputs,
        step.computed_tokens > 0,
        step.cached_tokens > 0,
        step.external_tokens > 0,
        step.running > 0,
        step.preemptions,
        step.dummy,
        kind_of(step),
    )


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_steps_come_in_the_same_shapes_as_from_vllm(events: SimulationEvents, role: str) -> None:
    """Every shape that vLLM showed occurs, and no other."""
    real = {shape(step) for step in captured(f"nixl_{role}")}

    assert {shape(step) for step in told_by_steps(events, role)} == real


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_each_field_has_vllms_type_and_range(events: SimulationEvents, role: str) -> None:
    real, simulated = captured(f"nixl_{role}"), told_by_steps(events, role)

    for field in Step._fields:
        types = {type(getattr(step, field)) for step in real}
        assert {type(getattr(step, field)) for step in simulated} == types, field
    for steps in (real, simulated):
        assert all(0 <= step.kv_usage_ratio <= 1 for step in steps)
        # Whole blocks of 512, of which vLLM keeps one.
        assert all(
            abs(step.kv_usage_ratio * 511 - round(step.kv_usage_ratio * 511)) < 1e-6
            for step in steps
        )
        assert all(one.t_ns < other.t_ns for one, other in pairwise(steps))
        assert all(step.elapsed_ns > 0 for step in steps)
        assert all(step.waiting == 0 <= step.deferred for step in steps)


def test_prefill_keeps_the_kv_that_decode_has_not_fetched_as_vllm_does(
    events: SimulationEvents,
) -> None:
    for steps in (captured("nixl_prefill"), told_by_steps(events, "prefill")):
        assert {step.running for step in steps} == {0}
        assert all(step.kv_usage_ratio > 0 for step in steps)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_sequence_and_totals_are_those_that_the_plugin_would_count(
    events: SimulationEvents, role: str
) -> None:
    """Recounted by the plugin's own `counting`; records of a mere state take a number as well."""
    totals, number, key = list(counting.NOTHING_YET), 0, None
    for _, message in events.messages:
        step = message.step
        if step is None or message.key.engine != f"{role}-0":
            continue
        if message.kind is MessageKind.STEP:
            number += 1
            if step.elapsed_ns:
                counting.count(totals, counting.Facts(*_facts(step)))
        key = key or message.key
        assert (message.key, step.sequence, step.totals) == (key, number, _totals(totals))

    assert number > 100


def test_every_message_survives_the_wire_format(events: SimulationEvents) -> None:
    """Except for the cache usage, which the wire carries with seven digits."""
    for _, message in events.messages:
        packet = wire.encode(_record(message))
        (again,) = messages_of([packet], message.key.engine, message.key.pid)
        assert again.step is not None
        assert message.step is not None
        usage = message.step.kv_usage_ratio
        assert again.step.kv_usage_ratio == pytest.approx(usage, rel=1e-6)
        same = again.step._replace(kv_usage_ratio=usage)
        assert again._replace(step=same) == message
        assert message.flags & ~wire.IN_FLIGHT == wire.SIMULATED
        assert (message.in_flight is not None) == bool(message.flags & wire.IN_FLIGHT)


@pytest.mark.parametrize("name", ["nixl_prefill", "nixl_decode"])
def test_the_page_of_a_pair_has_every_line_of_vllms(events: SimulationEvents, name: str) -> None:
    engine = name.removeprefix("nixl_") + "-0"
    page = next(page for page in reversed(events.pages) if page.engine == engine)

    assert skeleton(page.text) == skeleton((CAPTURES / f"{name}.prom").read_text())


def test_the_page_of_a_mixed_engine_has_every_line_of_vllms() -> None:
    events = _events(alone(model=TINY, kv_tokens=16384, longest_tokens=1024))

    real = skeleton((CAPTURES / "aggregated.prom").read_text())
    assert skeleton(events.pages[-1].text) == real


def test_the_page_agrees_with_the_steps(events: SimulationEvents) -> None:
    steps = told_by_steps(events, "decode")
    text = next(page.text for page in reversed(events.pages) if page.engine == "decode-0")
    values = {
        (sample.name, sample.labels.get("source", sample.labels.get("le", ""))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    page = parse_page(text.encode(), 1)
    wrote = sum(s.context_requests + s.generation_tokens for s in steps)

    assert page.external_tokens_total == sum(step.external_tokens for step in steps)
    assert page.generation_tokens_total == wrote
    assert values["vllm:prompt_tokens_by_source_total", "local_cache_hit"] == sum(
        step.cached_tokens for step in steps
    )
    assert values["vllm:iteration_tokens_total_count", ""] == len(steps)
    assert values["vllm:iteration_tokens_total_sum", ""] == wrote
    assert values["vllm:time_to_first_token_seconds_count", ""] == len(events.requests)
    assert values["vllm:inter_token_latency_seconds_count", ""] == wrote - len(events.requests)
    assert values["vllm:nixl_bytes_transferred_sum", ""] == TINY.kv_bytes_per_token * sum(
        step.external_tokens for step in steps
    )
    assert (page.running, page.waiting, page.kv_usage_ratio) == (0, 0, 0)


def skeleton(text: str) -> list[str]:
    """The lines of the `vllm:` families in order, without values and free text.

    The form of each number stays, digits as `9`; labels of the cache's configuration keep their
    names only.
    """
    lines = []
    for line in text.splitlines():
        if not re.match(r"(# (HELP|TYPE) )?vllm:", line):
            continue
        if line.startswith("# HELP"):
            line = " ".join(line.split()[:3])
        elif not line.startswith("#"):
            labels, value = line.rsplit(" ", 1)
            assert re.fullmatch(r"\d\.\d+e[-+]\d\d|\de\+\d\d|\d{1,6}\.\d+", value), line
            line = re.sub(r'(model_name)="[^"]*"', r"\1", labels)
            if "cache_config" in line:
                line = re.sub(r'="[^"]*"', "", line)
        lines.append(line)
    return lines


def _facts(step: Step) -> tuple[object, ...]:
    names = counting.Facts._fields
    return tuple(getattr(step, name) for name in names)


def _totals(totals: list[int]) -> StepTotals:
    return StepTotals(tuple(totals[:4]), tuple(totals[4:8]), *totals[8:])  # type: ignore[arg-type]


def _record(message: ControlMessage) -> wire.Record:
    kinds = {
        MessageKind.HELLO: wire.HELLO,
        MessageKind.STEP: wire.STEP,
        MessageKind.HEARTBEAT: wire.HEARTBEAT,
    }
    step, key = message.step, message.key
    assert step is not None
    if message.in_flight is not None:
        step = step._replace(context_requests=message.in_flight)
    head = (wire.VERSION, kinds[message.kind], message.flags, key.pid, key.engine_index, 0)
    totals = step.totals
    return wire.Record(
        *head,
        key.incarnation,
        step.sequence,
        step.t_ns,
        *_facts(step),  # type: ignore[arg-type]
        *totals.steps,
        *totals.elapsed_ns,
        totals.prefill_tokens,
        totals.decode_tokens,
        totals.drops,
    )
