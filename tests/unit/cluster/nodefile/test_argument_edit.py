from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from disagg_cluster.nodefile.argument_edit import ArgumentEditError, with_arguments

HEAD = """\
# The node.
workers:
  - name: prefill-0   # the first
    role: prefill
    model: /m
    port: 8000
"""
TAIL = "  - {name: decode-0, role: decode, model: /m, port: 8001}\n"
STEP = "--max-num-batched-tokens"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('    args: [--a, "1"] # why\n', f'    args: [--a, "1", {STEP}, "704"] # why\n'),
        ('    args: [--a, "1",]\n', f'    args: [--a, "1", {STEP}, "704",]\n'),
        ("    args: []\n", f'    args: [{STEP}, "704"]\n'),
        (f"    args: [{STEP}, '2048', --b]\n", f'    args: [{STEP}, "704", --b]\n'),
        (f"    args: ['{STEP}=2048']\n", f'    args: ["{STEP}=704"]\n'),
        ("    args: [--max_num_batched_tokens, '8']\n",
         '    args: [--max_num_batched_tokens, "704"]\n'),
        (
            "    args:\n      - --a # so\n      - 'b'\n",
            f"    args:\n      - --a # so\n      - 'b'\n      - {STEP}\n      - \"704\"\n",
        ),
        (
            f"    args:\n    - {STEP}\n    - '1'\n    - {STEP} # counts\n    - '2' # old\n",
            f"    args:\n    - {STEP}\n    - '1'\n    - {STEP} # counts\n    - \"704\" # old\n",
        ),
    ],
)  # fmt: skip
def test_only_the_value_changes_and_layout_stays(before: str, after: str) -> None:
    text = with_arguments(HEAD + before + TAIL, "prefill-0", {STEP: "704"})

    assert text == HEAD + after + TAIL


def test_missing_arguments_are_added() -> None:
    text = with_arguments(HEAD + TAIL, "prefill-0", {STEP: "704"})

    args = f'    args: [{STEP}, "704"]\n'
    head, name, rest = HEAD.partition("# the first\n")
    assert text == head + name + args + rest + TAIL


def test_a_worker_in_one_line_stays_in_one_line() -> None:
    text = with_arguments(HEAD + TAIL, "decode-0", {"--max-num-seqs": "54"})

    assert text.startswith(HEAD)
    assert 'name: decode-0, args: [--max-num-seqs, "54"],' in text


def test_line_endings_are_preserved() -> None:
    text = with_arguments((HEAD + TAIL).replace("\n", "\r\n"), "prefill-0", {STEP: "704"})

    assert text.count("\n") == text.count("\r\n")


def test_editing_shared_arguments_is_refused_with_an_instruction() -> None:
    shared = HEAD + '    args: &common [--a, "1"]\n' + TAIL.replace("}", ", args: *common}")

    with pytest.raises(ArgumentEditError, match="write --max-num-batched-tokens 704 there"):
        with_arguments(shared, "prefill-0", {STEP: "704"})


@pytest.mark.parametrize("text", ["", "workers: 3", "workers: [1]", HEAD, "workers: [{name: [x]}]"])
def test_an_unknown_worker_is_an_error(text: str) -> None:
    with pytest.raises(ArgumentEditError, match="no worker 'decode-7'"):
        with_arguments(text, "decode-7", {STEP: "704"})


def test_writing_an_argument_that_role_args_set_is_refused() -> None:
    text = HEAD + "    role_args:\n      decode: ['--max_num_batched_tokens=64']\n" + TAIL

    with pytest.raises(ArgumentEditError, match="`role_args` say --max-num-batched-tokens"):
        with_arguments(text, "prefill-0", {STEP: "704"})
    assert "--max-num-seqs" in with_arguments(text, "prefill-0", {"--max-num-seqs": "9"})


WORDS = st.text("abc-=#: '\"[]{},&*\u00fc", max_size=8)


@given(st.lists(WORDS, max_size=5), st.sampled_from([None, True, False]))
def test_edited_arguments_read_back_as_written_beside_any_others(
    args: list[str], flow: bool | None
) -> None:
    workers = [{"name": "a", "args": args}, {"name": "b", "args": ["--x"]}]
    text = yaml.safe_dump({"workers": workers}, default_flow_style=flow, allow_unicode=True)

    read = yaml.safe_load(with_arguments(text, "a", {"--max-num-seqs": "7"}))

    assert read["workers"][0]["args"] == [*args, "--max-num-seqs", "7"]
    assert read["workers"][1:] == workers[1:]
