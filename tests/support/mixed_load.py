"""A real vLLM engine under a load whose prompts are computed in chunks between decode steps."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from disagg_cluster.demo.disaggregated_client import complete_on_one
from support.recorded_engine import RecordedEngine, recorded_engine
from support.vllm_nodes import MODEL_NAME

CHUNK_TOKENS = 128
REQUEST_SECONDS = 180.0
ROUNDS = 5


async def record(
    python: Path, model: Path, folder: Path, *, overlapped: bool, in_process: bool = False
) -> RecordedEngine:
    """Load an engine and wait until it has reported all of its steps."""
    starting = recorded_engine(
        python,
        model,
        folder,
        batched_tokens=CHUNK_TOKENS,
        overlapped=overlapped,
        in_process=in_process,
    )
    async with starting as engine:
        await _load(engine)
        async with asyncio.timeout(60):
            while len(engine.steps) < len(engine.truth()):
                await asyncio.sleep(0.2)
    return engine


async def _load(engine: RecordedEngine) -> None:
    """Send prompts alone, answers alone, then both at once, in turns.

    So a machine that is slower for some seconds does not affect steps of one kind only.
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
