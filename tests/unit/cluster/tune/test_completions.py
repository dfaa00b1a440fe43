from __future__ import annotations

import json
import random

import pytest

from disagg_cluster.tune.completions import (
    EngineRefusalError,
    SmallVocabularyError,
    UnfitLengthError,
    UniquePrompts,
    completion_request,
    refusal,
    served_models,
    written_prompts,
)

URL = "http://e/v1/completions"


def test_several_prompts_are_one_request() -> None:
    asked = json.loads(completion_request("m", [[5, 6], [7]], 3))

    assert asked["prompt"] == [[5, 6], [7]]
    assert (asked["model"], asked["max_tokens"], asked["stream"]) == ("m", 3, True)


@pytest.mark.parametrize(
    ("line", "prompts"),
    [
        (b"", []),
        (b"data: [DONE]", []),
        (b'data: {"choices": [], "usage": {}}', []),
        (b'data: {"choices": [{"index": 2, "text": ""}]}', [(2, False)]),
        (
            b'data: {"choices": [{"index": 0, "finish_reason": null},'
            b' {"index": 1, "finish_reason": "stop"}]}',
            [(0, False), (1, True)],
        ),
    ],
)
def test_a_stream_line_gives_the_prompts_of_its_tokens(
    line: bytes, prompts: list[tuple[int, bool]]
) -> None:
    found = written_prompts(line, URL)

    assert [(each.prompt, each.is_last) for each in found] == prompts


@pytest.mark.parametrize(
    "line",
    [
        b"<html>",
        b"data: {",
        b'data: {"choices": 3}',
        b'data: {"choices": [{"text": "a"}]}',
        b'data: {"choices": [3]}',
        b"data: 7",
        b"data: " + b"[" * 100_000,
    ],
    ids=["html", "cut", "number", "no index", "no object", "no event", "deep"],
)
def test_an_invalid_stream_of_completions_is_refused(line: bytes) -> None:
    with pytest.raises(EngineRefusalError, match="no stream of completions"):
        written_prompts(line, URL)


def test_an_error_within_the_stream_is_raised_like_an_error_response() -> None:
    line = b'data: {"error": {"message": "Token id 29882 is out of vocabulary", "code": 400}}'

    with pytest.raises(SmallVocabularyError):
        written_prompts(line, URL)


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (401, b"", EngineRefusalError, "--header"),
        (429, b'{"error": {"message": "slow down"}}', EngineRefusalError, "slow down"),
        (503, b"", EngineRefusalError, "not ready"),
        (404, b'{"detail": "Not Found"}', EngineRefusalError, "Not Found"),
        (400, b'{"message": "maximum context length is 1024"}', UnfitLengthError, "1024"),
        (400, b'{"error": {"message": "out of vocabulary"}}', SmallVocabularyError, "token ids"),
        (307, b"", EngineRefusalError, "elsewhere"),
        (500, b"\x1b[31mbad\x07 " + b"x" * 999, EngineRefusalError, "500"),
        (400, b"[1]", EngineRefusalError, "400"),
        (400, b"[" * 100_000, EngineRefusalError, "[[["),
    ],
    ids=[
        "unauthorized",
        "busy",
        "not ready",
        "not found",
        "long",
        "vocabulary",
        "elsewhere",
        "control characters",
        "list",
        "deep",
    ],
)
def test_a_refusal_gives_its_reason_in_bounded_printable_text(
    status: int, body: bytes, kind: type[EngineRefusalError], said: str
) -> None:
    error = refusal(status, body, URL)

    assert type(error) is kind
    assert said in str(error)
    assert "\x1b" not in str(error)
    assert len(str(error)) < 500


def test_served_models_have_their_maximum_length() -> None:
    body = b'{"data": [{"id": "a", "max_model_len": 4096}, {"id": "b"}]}'

    assert served_models(body) == {"a": 4096, "b": None}


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"data": 3}', b'{"data": [3]}', b"[" * 100_000],
    ids=["nothing", "html", "list", "number", "numbers", "deep"],
)
def test_an_invalid_list_of_models_is_reported_as_no_openai_api(body: bytes) -> None:
    with pytest.raises(EngineRefusalError, match="no OpenAI API"):
        served_models(body)


def test_the_token_id_range_of_prompts_is_narrowed_once() -> None:
    prompts = UniquePrompts(random.Random(1))

    assert [prompts.narrow(), prompts.narrow()] == [True, False]
    assert max(prompts.of(1000)) < 256
