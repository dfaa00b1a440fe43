"""The price table made from our own recording of an H200, and the data sheet, against served steps.

The steps are those of an engine with async scheduling that served users, by CUDA events; the table
is from another day, another GPU, and points measured on purpose.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from functools import cache

import pytest
from bench.real.recorded import DATA

from disagg_cluster.simulator.engine.hardware import H200, LLAMA_8B
from disagg_cluster.simulator.engine.roofline import BatchWork, CostModel, Roofline
from disagg_cluster.simulator.prices.shipped import named_costs

TABLE = "h200_llama-3.1-8b_1"
LOADS = ("chat", "documents", "writing")


@cache
def served(load: str) -> list[tuple[BatchWork, float]]:
    """Return the work of each step and its seconds; prompts of a step as equally long."""
    return list(_served(load))


def _served(load: str) -> Iterator[tuple[BatchWork, float]]:
    with gzip.open(DATA / "timed.csv.gz", "rt") as lines:
        for row in csv.DictReader(lines):
            if row["part"] != f"{load}-async":
                continue
            prompts, tokens, past = (
                int(row[f"context_{name}"]) for name in ("requests", "tokens", "past_tokens")
            )
            chunk = tokens / max(1, prompts)
            work = BatchWork(
                context_tokens=tokens,
                context_pairs=round(tokens * (chunk + 1) / 2 + past * chunk),
                writers=int(row["generation_requests"]),
                writers_kv_tokens=int(row["generation_kv_tokens"]),
            )
            yield work, int(row["step_us"]) / 1e6


def priced_over_true(costs: CostModel, load: str, *, mixed: bool = False) -> float:
    steps = [(work, s) for work, s in served(load) if not mixed or work.context_tokens]
    return sum(costs.price(work).seconds for work, _ in steps) / sum(s for _, s in steps)


@pytest.mark.parametrize("load", LOADS)
def test_the_table_prices_what_users_had_computed_within_three_percent(load: str) -> None:
    costs = named_costs(TABLE)

    assert priced_over_true(costs, load) == pytest.approx(1, abs=0.03)
    assert priced_over_true(costs, load, mixed=True) == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize("load", LOADS)
def test_the_data_sheet_is_too_fast_by_less_than_eight_percent(load: str) -> None:
    ratio = priced_over_true(Roofline(H200, LLAMA_8B), load)

    assert 0.92 < ratio < 0.96
