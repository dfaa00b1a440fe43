"""What is shown of a text with secrets in it."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.config.masking import is_secret_name, masked, masked_arguments

WORDS = st.text(alphabet=string.ascii_letters + string.digits + "@:/!$%.~-_#", min_size=6)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://admin:pa@ss/word@10.0.0.7:80", "http://***@10.0.0.7:80"),
        ("not 'https://token@host'", "not 'https://***@host'"),
        ("not 'admin:hunter2@10.0.0.7:8100'", "not '***@10.0.0.7:8100'"),
        ("--api-key=abc --port=1", "--api-key=*** --port=1"),
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("{'extra': {'apiKey': 'two words', 'n': 1}}", "{'extra': {'apiKey': '***', 'n': 1}}"),
        ("Authorization: Bearer abcdefgh", "Authorization: ***"),
        ("not 'hf_abcdefghijkl'", "not '***'"),
        ("http://10.0.0.7:8100 a@b 12:30", "http://10.0.0.7:8100 a@b 12:30"),
        ("--tokenizer=x --max-num-batched-tokens=1", "--tokenizer=x --max-num-batched-tokens=1"),
        ("key_file: cannot be read", "key_file: cannot be read"),
        ("http://a:1,u:p,w@h [x:y@z]", "http://***@h [***@z]"),
        ("PASSWORD='two\nlines and no end", "PASSWORD='***'"),
        ("--api-key is set by the node itself", "--api-key is set by the node itself"),
    ],
)
def test_secrets_are_masked_and_the_rest_is_left(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_values_of_secret_options_of_a_command_line_are_masked() -> None:
    argv = ("vllm", "--api-key", "abc", "--port", "1", "--url", "http://u:p@h", "--hf-token=x")

    assert masked_arguments(argv) == (
        *("vllm", "--api-key", "***", "--port", "1"),
        *("--url", "http://***@h", "--hf-token=***"),
    )


@given(WORDS, st.sampled_from(["http://u:{}@host:1", "'u:{}@host'", "--api-key={}", "PASSWORD={}"]))
def test_a_password_is_never_in_the_masked_text(password: str, text: str) -> None:
    assert password not in masked(text.format(password))


@pytest.mark.parametrize("again", ["a", "a-.", "://", "u:", "a=b,", "a='", "a: ", "'", "eyJ", "@"])
def test_masking_a_long_text_takes_no_quadratic_time(again: str) -> None:
    # It would take minutes.
    assert masked(again * (100_000 // len(again)))


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((name, True) for name in ("--api-key", "HF_TOKEN", "apiKey", "password", "auth")),
        *((name, False) for name in ("tokenizer", "monkey", "key_file", "--ssl-keyfile", "port")),
    ],
)
def test_names_of_secrets_are_recognized_by_their_words(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret
