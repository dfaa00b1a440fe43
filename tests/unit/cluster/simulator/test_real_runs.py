"""The simulator against runs of real engines, within the bars of docs/simulator.md."""

from __future__ import annotations

import pytest
from bench.real.simulator import RUNS, RealRun, compare, read_run

from disagg_cluster.simulator.engine.hardware import RTX_PRO_6000
from disagg_cluster.simulator.engine.roofline import Roofline


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.file)
def test_simulated_means_match_those_of_a_real_run(run: RealRun) -> None:
    compared = compare(run)

    assert abs(compared.ttft_error) <= run.ttft_bar_ratio
    assert abs(compared.tpot_error) <= run.tpot_bar_ratio


@pytest.mark.parametrize("run", [r for r in RUNS if r.ranks == 1], ids=lambda run: run.file)
def test_a_roofline_from_data_sheets_comes_close_to_real_runs(run: RealRun) -> None:
    compared = compare(run, Roofline(RTX_PRO_6000, run.model, run.tensor_parallel))

    assert abs(compared.ttft_error) <= 0.15
    assert abs(compared.tpot_error) <= 0.1


def test_the_stored_runs_have_the_published_means() -> None:
    """Means of LLMServingSim's validation/summary.txt, in milliseconds."""
    said = {"llama-3.1-8b": (7097.2, 32.5), "qwen3-32b": (36905.2, 80.3)}
    said["qwen3-30b-a3b"] = (1086.0, 47.3)

    for run in RUNS:
        real = read_run(run)
        assert len(real) == 300
        ttft, tpot = said[run.file]
        assert sum(r.ttft_seconds for r in real) / 0.3 == pytest.approx(ttft, abs=0.1)
        assert sum(r.tpot_seconds for r in real) / 0.3 == pytest.approx(tpot, abs=0.05)
