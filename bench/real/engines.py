"""Aggregated engines priced by measurements of real GPUs, and their loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.attribution.engines import NOISE
from bench.real.measured import SHAPES, MeasuredSteps
from bench.real.wheel import WheelSteps

from disagg_cluster.simulator.cluster.spec import EngineSpec
from disagg_cluster.simulator.engine.roofline import CostModel
from disagg_exporter.model import Role

MEASURED, WHEEL = "measured mixed batches", "the wheel's tables"
WHEEL_MODELS = (
    ("meta-llama/Meta-Llama-3.1-8B", 1),
    ("meta-llama/Meta-Llama-3.1-70B", 4),
    ("openai/gpt-oss-120b", 1),
    ("Qwen/Qwen3-30B-A3B", 1),
)
WHEEL_GPUS = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200")
_KV_TOKENS = 400_000
_REQUESTS = 128


@dataclass(frozen=True, slots=True)
class PricedLoad:
    """An engine by name, and its users' mean prompt and answer; plain values, to pickle.

    `model` and `gpu` are the wheel's names; without a `gpu` the model is one of `SHAPES`.
    """

    source: str
    model: str
    traffic: tuple[float, float]
    gpu: str = ""
    gpus: int = 1
    step_tokens: int = 2048
    seed: int = 11

    @property
    def name(self) -> str:
        """The displayed name."""
        on = f" on {self.gpus} {self.gpu}" if self.gpu else ""
        prompt, answer = self.traffic
        return f"{self.model.split('/')[-1]}{on}, {prompt:.0f} : {answer:.0f}, {self.step_tokens}"

    def costs(self) -> CostModel:
        """Return the prices; raise if the tables lack something."""
        if self.gpu:
            return WheelSteps(self.model, self.gpu, self.gpus)
        return MeasuredSteps(next(shape for shape in SHAPES if shape.name == self.model))

    def spec(self) -> EngineSpec:
        """Return the engine; its step times are the prices with noise and drift."""
        return EngineSpec(
            self.name,
            Role.MIXED,
            (self.name,),
            noise=NOISE,
            costs=self.costs(),
            kv_tokens=_KV_TOKENS,
            running_requests=_REQUESTS,
            step_tokens=self.step_tokens,
        )


def measured_loads() -> Iterator[PricedLoad]:
    """Yield loads of the engines whose mixed batches were measured."""
    for shape in SHAPES:
        for step_tokens in (512, 2048):
            for traffic in ((200, 200), (800, 200), (3000, 300), (1500, 60)):
                yield PricedLoad(MEASURED, shape.name, traffic, step_tokens=step_tokens)


def wheel_loads() -> Iterator[PricedLoad]:
    """Yield loads of the engines that the wheel's tables price; some tables lack some models."""
    for model, gpus in WHEEL_MODELS:
        for gpu in WHEEL_GPUS:
            for traffic in ((300, 200), (2000, 200)):
                yield PricedLoad(WHEEL, model, traffic, gpu, gpus)
