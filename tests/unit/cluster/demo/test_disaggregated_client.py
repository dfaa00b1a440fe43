"""The client that acts as the router, against a tiny server that answers like two engines."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from disagg_cluster.demo.disaggregated_client import (
    EXAMPLE,
    NIXL,
    CompletionError,
    complete,
    complete_on_one,
)
from support.http_serving import serving

HANDED_OVER = {
    "do_remote_prefill": True,
    "remote_engine_id": "e-1",
    "remote_block_ids": [[3]],
    "remote_port": 5600,
}


def _answer(text: str, **more: object) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    return json.dumps({"choices": [{"text": text}], "usage": usage, **more}).encode()


@contextlib.contextmanager
def engine(
    answer: Callable[[dict[str, Any]], tuple[int, bytes]],
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve POST /v1/completions with `answer`; yield the base URL and the bodies received."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body | {"path": self.path})
            status, content = answer(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as url:
        yield url, bodies


def test_nixl_passes_the_blocks_from_prefill_to_decode() -> None:
    with (
        engine(lambda _: (200, _answer("x", kv_transfer_params=HANDED_OVER))) as (prefill, asked),
        engine(lambda _: (200, _answer("hello"))) as (decode, handed),
    ):
        completion = complete(prefill, decode + "/", "tiny", "a prompt", 5, NIXL, 10)

    assert completion.text == "hello"
    assert (completion.prompt_tokens, completion.completion_tokens) == (7, 5)
    [at_prefill], [at_decode] = asked, handed
    assert at_prefill["path"] == at_decode["path"] == "/v1/completions"
    assert at_prefill["max_tokens"] == 1
    assert at_prefill["kv_transfer_params"]["do_remote_decode"] is True
    assert at_prefill["kv_transfer_params"]["do_remote_prefill"] is False
    assert at_prefill["kv_transfer_params"]["remote_engine_id"] is None
    assert at_decode["max_tokens"] == 5
    assert at_decode["kv_transfer_params"] == HANDED_OVER
    for body in (at_prefill, at_decode):
        assert (body["model"], body["prompt"], body["temperature"]) == ("tiny", "a prompt", 0)


def test_the_example_connector_adds_nothing_to_the_request() -> None:
    with (
        engine(lambda _: (200, _answer("x"))) as (prefill, asked),
        engine(lambda _: (200, _answer("hello"))) as (decode, handed),
    ):
        completion = complete(prefill, decode, "tiny", "a prompt", 5, EXAMPLE, 10)

    assert completion.text == "hello"
    assert [body["max_tokens"] for body in (*asked, *handed)] == [1, 5]
    assert not any("kv_transfer_params" in body for body in (*asked, *handed))


def test_decode_gets_no_request_without_transfer_parameters() -> None:
    with (
        engine(lambda _: (200, _answer("x"))) as (prefill, _),
        engine(lambda _: (200, _answer("hello"))) as (decode, handed),
        pytest.raises(CompletionError, match=f"prefill engine {prefill} .*kv_transfer_params"),
    ):
        complete(prefill, decode, "tiny", "a prompt", 5, NIXL, 10)

    assert handed == []


def test_an_engines_refusal_is_reported_with_its_text() -> None:
    with (
        engine(lambda _: (200, _answer("x"))) as (prefill, _),
        engine(lambda _: (400, b'{"error": "too long"}')) as (decode, _),
        pytest.raises(CompletionError, match=f"decode engine {decode} said 400: .*too long"),
    ):
        complete(prefill, decode, "tiny", "a prompt", 5, EXAMPLE, 10)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<html>", "no JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "no completion"),
        (b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}', "completion"),
    ],
)
def test_an_answer_that_is_no_completion_is_an_error(content: bytes, told: str) -> None:
    with (
        engine(lambda _: (200, content)) as (url, _),
        pytest.raises(CompletionError, match=f"mixed engine {url} .*{told}"),
    ):
        complete_on_one(url, "tiny", "a prompt", 5, 10)


def test_an_unreachable_engine_is_named() -> None:
    with engine(lambda _: (200, b"")) as (gone, _):
        pass

    with pytest.raises(CompletionError, match=f"prefill engine {gone} is not reachable"):
        complete(gone, gone, "tiny", "a prompt", 5, NIXL, 10)


def test_a_silent_engine_is_given_up_after_the_timeout() -> None:
    over = threading.Event()

    def never(_: dict[str, Any]) -> tuple[int, bytes]:
        over.wait(10)
        return 200, b""

    with engine(never) as (url, _):
        try:
            with pytest.raises(CompletionError, match=r"said nothing for 0\.1 s"):
                complete_on_one(url, "tiny", "a prompt", 5, 0.1)
        finally:
            over.set()


def test_an_empty_answer_is_an_error() -> None:
    with (
        engine(lambda _: (200, b"")) as (url, _),
        pytest.raises(CompletionError, match="no JSON"),
    ):
        complete_on_one(url, "tiny", "a prompt", 5, 10)


def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with engine(lambda _: (200, _answer("hello"))) as (url, _):
        assert complete_on_one(url, "tiny", "a prompt", 5, 10).text == "hello"


def test_another_connector_or_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown connector 'Carrier'"):
        complete("http://127.0.0.1:1", "http://127.0.0.1:1", "tiny", "a", 1, "Carrier", 1)
    with pytest.raises(ValueError, match="http://"):
        complete("file:///etc", "http://127.0.0.1:1", "tiny", "a", 1, NIXL, 1)
