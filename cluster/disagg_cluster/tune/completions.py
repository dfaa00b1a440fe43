"""Completion requests with several prompts, and the parsing of their streamed answers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from disagg_cluster.host.foreign_json import parse_foreign
from disagg_exporter.errors import DisaggError

_DATA = b"data:"
_DONE = b"[DONE]"
_MOST_CHARACTERS = 300
# Ordinary words in any vocabulary of 32,000 or more, and in the smallest ones; both ranges avoid
# the special tokens at the ends.
_USUAL_IDS = (100, 30_000)
_FEW_IDS = (3, 256)

Prompt = Sequence[int]


class EngineRefusalError(DisaggError):
    """An engine rejects a request; the message says why and what to do."""


class SmallVocabularyError(EngineRefusalError):
    """The engine's vocabulary lacks the token ids that were sent."""


class UnfitLengthError(EngineRefusalError):
    """A prompt plus its output is longer than the engine accepts."""


@dataclass(frozen=True, slots=True)
class WrittenToken:
    """A token for one of the prompts of a request, and when it arrived (monotonic seconds).

    `is_last`: the engine generates no more for this prompt.
    """

    prompt: int
    at_seconds: float
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class WrittenPrompt:
    """A prompt that gets a token, and whether it is the last."""

    prompt: int
    is_last: bool = False


@dataclass(slots=True)
class UniquePrompts:
    """Prompts of random tokens, all different, so that prefix caches do not serve them.

    Attributes:
        rng: The random generator.
        ids: The range of token ids.
    """

    rng: random.Random
    ids: tuple[int, int] = _USUAL_IDS

    def of(self, tokens: int) -> Prompt:
        """Return a prompt of `tokens` tokens."""
        return self.rng.choices(range(*self.ids), k=tokens)

    def narrow(self) -> bool:
        """Switch to ids that the smallest vocabularies have; returns whether they differ."""
        wider, self.ids = self.ids, _FEW_IDS
        return wider != _FEW_IDS


def completion_request(model: str, prompts: Sequence[Prompt], max_tokens: int) -> bytes:
    """Return the body of a request that streams `max_tokens` tokens for each prompt."""
    return json.dumps(
        {
            "model": model,
            "prompt": list(map(list, prompts)),
            "max_tokens": max_tokens,
            "temperature": 0,
            # For vLLM, SGLang and TensorRT-LLM; others ignore or reject it.
            "ignore_eos": True,
            "stream": True,
        },
        separators=(",", ":"),
    ).encode()


def written_prompts(line: bytes, url: str) -> list[WrittenPrompt]:
    """Return the prompts that get a token in a line of the answer; empty between events.

    Args:
        line: Without its line end.
        url: The engine, for errors.

    Raises:
        EngineRefusalError: The line is not an event of a completion.
    """
    if not line.startswith(_DATA):
        if line.strip():
            raise EngineRefusalError(f"its answer is no stream of completions: {_one_line(line)}")
        return []
    text = line.removeprefix(_DATA).strip()
    if text == _DONE:
        return []
    try:
        event = parse_foreign(text)
        if isinstance(event, dict) and event.get("error"):
            # The stream starts with status 200 before the engine checks the prompt.
            code = event["error"].get("code") if isinstance(event["error"], dict) else None
            raise refusal(code if isinstance(code, int) else 400, text, url)
        # The final event with the usage has no choices.
        return [
            WrittenPrompt(int(choice["index"]), choice.get("finish_reason") is not None)
            for choice in event["choices"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"its answer is no stream of completions: {_one_line(text)}"
        raise EngineRefusalError(message) from None


def refusal(status: int, body: bytes, url: str) -> EngineRefusalError:
    """Return an error that says why the engine rejected a request, and what to do."""
    message = _message(body)
    lower = message.lower()
    if status in (401, 403):
        return EngineRefusalError(
            f"{url} denies access ({status}): authenticate with "
            "--header 'Authorization: Bearer …' or --http-config FILE"
        )
    if status in (429, 503):
        return EngineRefusalError(
            f"{url} refuses for load, or is not ready ({status}): {message}\n"
            "    probe it while it serves no other requests"
        )
    if status in (404, 405):
        return EngineRefusalError(
            f"{url} has no completions of this model ({status}): {message}\n"
            "    --engine wants the root of an OpenAI API, --model a name that it serves"
        )
    if status in (400, 422) and ("vocab" in lower or "out of range" in lower):
        return SmallVocabularyError(f"{url} does not know these token ids: {message}")
    if status in (400, 413) and any(word in lower for word in ("length", "longer", "kv cache")):
        return UnfitLengthError(f"{url} does not take prompts of this length: {message}")
    if 300 <= status < 400:
        return EngineRefusalError(f"{url} sends us elsewhere ({status}): give that address")
    return EngineRefusalError(f"{url} answers {status}: {message}")


def served_models(body: bytes) -> dict[str, int | None]:
    """Return the models of `/v1/models`, with the most tokens of each where reported.

    Raises:
        EngineRefusalError: It is not such a list.
    """
    try:
        listed: Any = parse_foreign(body)["data"]
        return {str(each["id"]): _count(each.get("max_model_len")) for each in listed}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EngineRefusalError(
            f"its /v1/models is no list of models, so it is no OpenAI API: {_one_line(body)}"
        ) from None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _message(body: bytes) -> str:
    """The message in an error body, in any of the known formats."""
    try:
        message = parse_foreign(body)
        error = message.get("error", message)
        found = error.get("message") or message.get("detail") if isinstance(error, dict) else error
        return _one_line(str(found or message).encode())
    except (ValueError, AttributeError):
        return _one_line(body) or "no message"


def _one_line(text: bytes) -> str:
    """External text as one line that is safe for a terminal."""
    line = " ".join(text.decode("utf-8", "replace").split())
    line = "".join(each if each.isprintable() else "?" for each in line)
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…"
