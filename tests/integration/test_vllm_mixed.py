"""A real vLLM engine that prefills in chunks between its decode steps, held against its worker."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cluster.demo.disaggregated_client import complete_on_one
from disagg_exporter.inside_engine.disagg_steps import wire
from support.captures import write_capture
from support.mixed_steps import booked_seconds, median_error
from support.recorded_engine import RecordedEngine, recorded_engine
from support.vllm_nodes import MODEL_NAME
from support.vllm_session import Say

pytestmark = pytest.mark.vllm_long

CHUNK_TOKENS = 128
REQUEST_SECONDS = 180.0
ROUNDS = 5
DATA = Path(__file__).parents[1] / "data" / "vllm-0.32.0"
# Set to write what was recorded to tests/data.
WRITE = "DISAGG_WRITE_CAPTURE"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's folder: the path of a Unix socket must be short."""
    with tempfile.TemporaryDirectory(prefix="dn-") as name:
        yield Path(name)


async def load(engine: RecordedEngine) -> None:
    """Prompts alone, answers alone, then both at once, in turns.

    What makes the machine slower for some seconds shall not meet steps of one kind only.
    """
    dice = random.Random(20261121)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]

    async def ask(words_wanted: int, tokens: int, turn: asyncio.Semaphore) -> None:
        prompt = " ".join(dice.choice(words) for _ in range(words_wanted))
        async with turn:
            await asyncio.to_thread(
                complete_on_one, engine.url, MODEL_NAME, prompt, tokens, REQUEST_SECONDS
            )

    for _ in range(ROUNDS):
        alone = asyncio.Semaphore(1)
        await asyncio.gather(*(ask(dice.randrange(2, 100), 1, alone) for _ in range(6)))
        for together in (1, 2, 4, 6, 8):
            turn = asyncio.Semaphore(together)
            await asyncio.gather(*(ask(1, 8, turn) for _ in range(together)))
        turn = asyncio.Semaphore(4)
        await asyncio.gather(
            *(ask(dice.randrange(20, 120), dice.randrange(5, 40), turn) for _ in range(10))
        )


async def record(python: Path, model: Path, folder: Path, *, overlapped: bool) -> RecordedEngine:
    """Load an engine and wait until it has told all of its steps."""
    starting = recorded_engine(
        python, model, folder, batched_tokens=CHUNK_TOKENS, overlapped=overlapped
    )
    async with starting as engine:
        await load(engine)
        async with asyncio.timeout(30):
            while len(engine.steps) < len(engine.truth()):
                await asyncio.sleep(0.2)
    return engine


@pytest.mark.parametrize(
    ("overlapped", "within", "name"), [(False, 0.05, "mixed"), (True, 0.10, "mixed_async")]
)
def test_chunks_between_decode_steps_are_booked_as_long_as_the_worker_held_them(
    vllm_python: Path,
    wide_model: Path,
    folder: Path,
    overlapped: bool,
    within: float,
    name: str,
    say: Say,
) -> None:
    engine = asyncio.run(record(vllm_python, wide_model, folder, overlapped=overlapped))
    records, truth = engine.steps, engine.truth()
    steps = [message.step for message in records if message.step is not None]
    assert len(steps) == len(truth)
    if WRITE in os.environ:
        write_capture(DATA / f"{name}.steps.jsonl.gz", records, truth)

    told = {bool(message.flags & wire.OVERLAPPED) for message in engine.heard}
    booked = booked_seconds(steps, overlapped=overlapped)
    stamped = sum(step.held_ns for step in truth) / 1e9
    error = median_error((s, t.held_ns) for s, t in zip(steps, truth, strict=True))
    say(
        f"{name}: {len(steps)} steps, booked {booked:.3f} s, stamped {stamped:.3f} s, "
        f"{booked / stamped - 1:+.2%}; mixed steps foreseen within {error:.1%} (median)"
    )
    assert told == {overlapped}
    assert booked == pytest.approx(stamped, rel=within)
    assert error <= 0.10
