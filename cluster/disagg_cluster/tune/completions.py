"""What an engine is asked for, and what it answers: completions, several in one request."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from disagg_exporter.errors import DisaggError

_DATA = b"data:"
_DONE = b"[DONE]"
_MOST_CHARACTERS = 300
# Ordinary words of any vocabulary from 32,000 on, and of the smallest; neither holds what models
# keep at the ends: marks of begin, end and roles.
_USUAL_IDS = (100, 30_000)
_FEW_IDS = (3, 256)

Prompt = Sequence[int]


class EngineRefusalError(DisaggError):
    """An engine that does not do what it was asked for; the text says why, and the way out."""


class SmallVocabularyError(EngineRefusalError):
    """Its vocabulary has none of the token ids that were sent."""


class UnfitLengthError(EngineRefusalError):
    """A prompt, with what is to be written, is longer than the engine takes."""


@dataclass(frozen=True, slots=True)
class WrittenToken:
    """A token of one of the prompts of a request: which, and when it came (monotonic seconds)."""

    prompt: int
    at_seconds: float


@dataclass(slots=True)
class UniquePrompts:
    """Prompts of random tokens, no two alike, so that no prefix cache answers for an engine.

    Attributes:
        rng: Where they come from.
        ids: From which token id to below which.
    """

    rng: random.Random
    ids: tuple[int, int] = _USUAL_IDS

    def of(self, tokens: int) -> Prompt:
        """Return a prompt of so many tokens."""
        return self.rng.choices(range(*self.ids), k=tokens)

    def narrow(self) -> bool:
        """Go on with ids that the smallest vocabularies have; say whether that is any change."""
        wider, self.ids = self.ids, _FEW_IDS
        return wider != _FEW_IDS


def completion_request(model: str, prompts: Sequence[Prompt], max_tokens: int) -> bytes:
    """Return the body: each prompt answered in so many tokens, told as they come."""
    return json.dumps(
        {
            "model": model,
            "prompt": list(map(list, prompts)),
            "max_tokens": max_tokens,
            "temperature": 0,
            # Of vLLM, SGLang and TensorRT-LLM; others pass over it or say so.
            "ignore_eos": True,
            "stream": True,
        },
        separators=(",", ":"),
    ).encode()


def written_prompts(line: bytes, url: str) -> list[int]:
    """Return of which prompts a token is in a line of the answer; none in lines between events.

    Args:
        line: Without its end.
        url: Who answers, for errors.

    Raises:
        EngineRefusalError: The line is no event of a completion.
    """
    if not line.startswith(_DATA):
        if line.strip():
            raise EngineRefusalError(f"its answer is no stream of completions: {_told(line)}")
        return []
    text = line.removeprefix(_DATA).strip()
    if text == _DONE:
        return []
    try:
        event = json.loads(text)
        if isinstance(event, dict) and event.get("error"):
            # A stream has begun with 200 by the time that the engine looks at a prompt.
            code = event["error"].get("code") if isinstance(event["error"], dict) else None
            raise refusal(code if isinstance(code, int) else 400, text, url)
        # A last event with the usage has no choices.
        return [int(choice["index"]) for choice in event["choices"]]
    except (ValueError, KeyError, TypeError):
        told = f"its answer is no stream of completions: {_told(text)}"
        raise EngineRefusalError(told) from None


def refusal(status: int, body: bytes, url: str) -> EngineRefusalError:
    """Return why an engine that answers with an error does so, and the way out."""
    told = _message(body)
    lower = told.lower()
    if status in (401, 403):
        return EngineRefusalError(
            f"{url} does not let us in ({status}): say who we are with "
            "--header 'Authorization: Bearer …' or --http-config FILE"
        )
    if status in (429, 503):
        return EngineRefusalError(
            f"{url} refuses for load, or is not ready ({status}): {told}\n"
            "    probe it when it serves nobody else"
        )
    if status in (404, 405):
        return EngineRefusalError(
            f"{url} has no completions of this model ({status}): {told}\n"
            "    --engine wants the root of an OpenAI API, --model a name that it serves"
        )
    if status in (400, 422) and ("vocab" in lower or "out of range" in lower):
        return SmallVocabularyError(f"{url} does not know these token ids: {told}")
    if status in (400, 413) and any(word in lower for word in ("length", "longer", "kv cache")):
        return UnfitLengthError(f"{url} does not take prompts of this length: {told}")
    if 300 <= status < 400:
        return EngineRefusalError(f"{url} sends us elsewhere ({status}): give that address")
    return EngineRefusalError(f"{url} answers {status}: {told}")


def served_models(body: bytes) -> dict[str, int | None]:
    """Return the models of `/v1/models` with the most tokens of each, where that is told.

    Raises:
        EngineRefusalError: It is no such list.
    """
    try:
        listed: Any = json.loads(body)["data"]
        return {str(each["id"]): _count(each.get("max_model_len")) for each in listed}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EngineRefusalError(
            f"its /v1/models is no list of models, so it is no OpenAI API: {_told(body)}"
        ) from None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _message(body: bytes) -> str:
    """The words of an error's body, in whichever of the known forms."""
    try:
        told = json.loads(body)
        error = told.get("error", told)
        found = error.get("message") or told.get("detail") if isinstance(error, dict) else error
        return _told(str(found or told).encode())
    except (ValueError, AttributeError):
        return _told(body) or "without a word"


def _told(text: bytes) -> str:
    """What somebody else wrote, in one line that a terminal bears."""
    line = " ".join(text.decode("utf-8", "replace").split())
    line = "".join(each if each.isprintable() else "?" for each in line)
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…"
