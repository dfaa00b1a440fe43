"""Real prefill steps of a B200, predicted one ahead by our cost model and by NVIDIA's models."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench.real.wheel import forward_pass, native, regression

from disagg_cluster.simulator.engine.roofline import BatchWork
from disagg_exporter.attribution.cost_model.cost import StepCost
from disagg_exporter.attribution.cost_model.samples import StepWork

DATA = Path(__file__).parents[2] / "tests/data/aiconfigurator"
FIRST = 500
"""Steps for learning, before any is judged."""


class RealStep(NamedTuple):
    """A prefill step: its seconds, prompt tokens, cached tokens that these attend to, requests."""

    seconds: float
    tokens: int
    cached_tokens: int
    requests: int

    @property
    def attended(self) -> float:
        """Tokens attended to by all tokens, for requests of equal length."""
        chunk = self.tokens / self.requests
        return self.tokens * (self.cached_tokens / self.requests + (chunk + 1) / 2)


class PredictionScore(NamedTuple):
    """Of the judged steps: the mean absolute error, and all predicted over all real seconds."""

    error_ratio: float
    sum_ratio: float


def real_steps() -> Iterator[RealStep]:
    """Yield the steps in order."""
    with gzip.open(DATA / "b200-gpt-oss-120b-prefill-steps.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.reader(list(file)[1:]):
            yield RealStep(float(row[0]), *map(int, row[1:]))


def ours() -> PredictionScore:
    """Score our cost model."""
    cost = StepCost()

    def predict(step: RealStep) -> float:
        work = StepWork(float(step.tokens), step.attended)
        seconds = cost.expect(work) or step.seconds
        cost.learn(work, step.seconds)
        return seconds

    return _judge(predict)


def peers() -> dict[str, PredictionScore]:
    """Score NVIDIA's models: native, corrected by the steps, and a regression on them alone."""
    found = {}
    model = ("openai/gpt-oss-120b", "b200_sxm", 1, "trtllm")
    for name, peer, tunes in (
        ("NVIDIA's regression", regression(), True),
        ("NVIDIA's native model, corrected", native(*model), True),
        ("NVIDIA's native model", native(*model), False),
    ):

        def predict(step: RealStep, peer: object = peer, tunes: bool = tunes) -> float:
            work = BatchWork(step.tokens, round(step.attended), step.tokens + step.cached_tokens)
            metrics = forward_pass(work, step.requests, step.seconds)
            estimate = peer.estimate_forward_pass_time_ms(json.dumps([metrics]))  # type: ignore[attr-defined] # from a wheel without types
            if tunes:
                peer.tune_with_fpms(json.dumps([[metrics]]))  # type: ignore[attr-defined] # as above
            return step.seconds if estimate is None else estimate / 1e3

        found[name] = _judge(predict)
    return found


def _judge(predict: Callable[[RealStep], float]) -> PredictionScore:
    steps = list(real_steps())
    predicted = np.array([predict(step) for step in steps])[FIRST:]
    real = np.array([step.seconds for step in steps])[FIRST:]
    error = np.mean(np.abs(predicted / real - 1))
    return PredictionScore(float(error), float(predicted.sum() / real.sum()))
