"""`disagg-node roles explain`: markers as JSON in, whole output looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from support.collected import is_collected_in_json


def explain(text: str | bytes, *options: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one run on standard input."""
    result = CliRunner().invoke(
        main, ["roles", "explain", "-", *options], input=text, prog_name="disagg-node"
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


MARKERS = {
    "argv": ["python3", "-m", "sglang.launch_server", "--disaggregation-mode", "decode"],
    "labels": {"llm-d.ai/role": "prefill"},
}
TEXT = """\
role        prefill
confidence  low
why         llm-d: llm-d.ai/role is prefill: says prefill
            sglang: --disaggregation-mode is decode: says decode
"""


def test_the_text_has_the_role_the_confidence_and_every_reason() -> None:
    assert explain(json.dumps(MARKERS)) == (0, TEXT, "")


def test_json_holds_the_same_values() -> None:
    code, out, _ = explain(json.dumps(MARKERS), "--json")

    answer = json.loads(out)
    assert (code, answer["role"], answer["confidence"]) == (0, "prefill", "low")
    assert [item["role"] for item in answer["evidence"]] == ["prefill", "decode"]


def test_a_file_is_read_like_the_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "markers.json"
    path.write_text(json.dumps(MARKERS))

    result = CliRunner().invoke(main, ["roles", "explain", str(path)])

    assert (result.exit_code, result.stdout) == (0, TEXT)


def test_a_router_is_not_an_engine_whatever_the_labels_of_its_pod() -> None:
    markers = {"argv": ["pd-sidecar", "--port=8000"], "labels": {"llm-d.ai/role": "decode"}}

    assert json.loads(explain(json.dumps(markers), "--json")[1])["role"] == "not_an_engine"


@pytest.mark.parametrize("text", ["{}", '{"argv": null, "env": null, "labels": null}'])
def test_markers_that_are_not_known_give_an_unknown_role(text: str) -> None:
    expected = "role        unknown\nconfidence  none\nwhy         no marker that we know\n"
    assert explain(text) == (0, expected, "")


def test_a_prefill_peer_may_be_given() -> None:
    markers = {"labels": {"llm-d.ai/role": "decode"}, "peers": ["prefill"]}

    assert json.loads(explain(json.dumps(markers), "--json")[1])["role"] == "decode"


def test_all_problems_are_reported_at_once() -> None:
    text = json.dumps(
        {
            "argv": ["a", 1],
            "env": {"A": None},
            "labels": [],
            "page": "x",
            "label": {},
            "name": 3,
            "peers": ["router", {}],
        }
    )

    code, out, err = explain(text)

    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "standard input: argv[1]: expected a string, found a number",
        "standard input: env.A: expected a string, found null",
        "standard input: label: unknown key",
        "    did you mean labels?",
        "standard input: labels: expected an object of strings, found a list",
        "standard input: name: expected a string, found a number",
        "standard input: page: expected a list of strings, found a string",
        "standard input: peers[0]: expected one of: prefill, decode",
        "standard input: peers[1]: expected one of: prefill, decode",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "standard input:1: no JSON: Expecting value at column 1"),
        ('{\n"argv": [}', "standard input:2: no JSON: Expecting value at column 10"),
        ("[]", "standard input: expected an object, found a list"),
        ('{"argv": [], "argv": []}', "standard input: argv: given twice"),
        ("[" * 100_000, "standard input: no JSON that we read: nested too deep"),
        ('{"argv": ' + "1" * 10_000 + "}", "standard input: no JSON that we read: a number"),
        (b"\xff\xfe", "standard input: not UTF-8"),
    ],
    ids=["empty", "syntax", "list", "twice", "deep", "digits", "bytes"],
)
def test_an_input_that_is_no_markers_object_is_refused_with_the_reason(
    text: str | bytes, words: str
) -> None:
    code, out, err = explain(text)

    assert (code, out) == (2, "")
    assert err.startswith(words)


def test_nothing_is_finalized_at_the_depth_of_a_hostile_input() -> None:
    """What has no stack left fails there, and is printed by Python as ignored."""
    assert not is_collected_in_json(lambda: explain("[" * 100_000))


def test_an_input_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("disagg_cluster.inspect.markers_file",):
        monkeypatch.setattr(f"{module}.MAX_BYTES", 10)

    assert explain(json.dumps(MARKERS))[0] == 2
    assert explain("{}")[0] == 0


def test_no_raw_value_is_printed() -> None:
    secret = "hunter2"
    markers = {
        "argv": ["vllm", "serve", "m", "--api-key", secret, "--kv-transfer-config", secret],
        "env": {"HF_TOKEN": secret, "ROLE": secret},
        "labels": {"app": f"{secret}-prefill", "llm-d.ai/role": secret},
        "page": [f'vllm:x{{pod="{secret}-decode"}} 1'],
    }

    for options in ([], ["--json"]):
        code, out, err = explain(json.dumps(markers), *options)
        assert (code, err) == (0, "")
        assert secret not in out
