from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disagg_cluster.config import NodeConfig, Restart, Router, Worker
from disagg_cluster.config.problems import ConfigError, Problem
from disagg_cluster.nodefile import from_mapping, load, parse
from disagg_cluster.nodefile.checks import LONGEST_SOCKET_PATH_BYTES
from disagg_cluster.nodefile.reading import ELSEWHERE
from disagg_cluster.nodefile.shape import find_entry
from disagg_exporter.steps.local_sockets import LONGEST_PATH_BYTES
from support.node_files import HAS_ALL, HAS_NOTHING, node, worker

FUZZ = settings(
    deadline=None,  # the machine may be busy
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
DATA = Path(__file__).parents[3] / "data" / "nodefiles"


def paths(mapping: object) -> list[str]:
    """Where the problems of a file are."""
    with pytest.raises(ConfigError) as refused:
        from_mapping(mapping, "test", HAS_ALL)  # type: ignore[arg-type] # wrong on purpose
    return [problem.path for problem in refused.value.problems]


def pair(**change: Any) -> dict[str, Any]:
    """A file with a prefill and a decode worker, with `change` to the latter."""
    give = {"connector": "NixlConnector", "side_channel_port": 5600}
    take = {"connector": "NixlConnector", "side_channel_port": 5700}
    prefill = worker("prefill-0", role="prefill", gpus=[0], kv_transfer=give)
    decode = worker("decode-0", role="decode", port=8200, kv_transfer=take)
    return {"workers": [prefill, {**decode, **change}]}


def test_a_problem_has_its_path_line_message_and_hint() -> None:
    with pytest.raises(ConfigError) as refused:
        parse("node: n\n\nworkers: []\nclustre: x\n", "here.yaml")

    (problem,) = refused.value.problems
    assert (problem.path, problem.line) == ("clustre", 4)
    assert problem.message == "unknown key"
    assert problem.hint == "did you mean 'cluster'?"
    assert str(refused.value) == "here.yaml:4: clustre: unknown key\n    did you mean 'cluster'?"
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("file", "why"),
    [("missing.yaml", "No such file or directory"), (".", "Is a directory")],
)
def test_an_unreadable_file_is_reported_as_a_problem(tmp_path: Path, file: str, why: str) -> None:
    path = tmp_path / file

    with pytest.raises(ConfigError) as refused:
        load(path)

    assert str(refused.value) == f"{path}: cannot be read: {why}"


def test_a_file_that_is_not_utf8_is_reported_as_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(b"node: \xff\xfe")

    with pytest.raises(ConfigError, match="not text in UTF-8"):
        load(path)


def test_anchors_and_merged_keys_may_be_used() -> None:
    """A mapping's own key beside a merged one is no key written twice."""
    config = parse(
        """
        workers:
          - &one {name: a, role: mixed, model: m, port: 1, gpus: 1}
          - {<<: *one, name: b, port: 2}
        """,
        "test",
        HAS_ALL,
    )

    assert [(w.name, w.port, w.model) for w in config.workers] == [("a", 1, "m"), ("b", 2, "m")]


def test_a_problem_in_a_merged_value_has_the_line_of_the_value() -> None:
    text = (
        "workers:\n  - &one\n    name: a\n    role: bad\n    model: m\n    port: 1\n    gpus: 1\n"
    )

    with pytest.raises(ConfigError) as refused:
        parse(text + "  - {<<: *one, name: b, port: 2}\n", "test", HAS_ALL)

    assert [(p.path, p.line) for p in refused.value.problems] == [
        ("workers[0].role", 4),
        ("workers[1].role", 4),
    ]


def test_exponential_alias_expansion_is_refused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 12):
        uses = ", ".join([f"*a{level - 1}"] * 10)
        levels.append(f"a{level}: &a{level} [{uses}]")

    with pytest.raises(ConfigError, match="too large or nested too deeply"):
        parse("\n".join(levels), "test")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("node: x\ngpu_price: {per_hour: 1" + ":00" * 300_000 + "}", 2),
        ("? 1" + ":00" * 300_000 + ".5\n: 1", 1),
        ("".join(f"%TAG !a{n}! x\n" for n in range(40_000)) + "--- {}", None),
    ],
    ids=["sixtieths", "sixtieths-as-a-key", "directives"],
)
def test_yaml_that_would_take_minutes_to_parse_is_refused(text: str, line: int | None) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text, "node.yaml")

    assert [problem.line for problem in raised.value.problems] == [line]


def test_a_long_value_is_truncated_in_a_report() -> None:
    with pytest.raises(ConfigError) as raised:
        parse(f"node: x\nrun_dir: /{'a' * 500_000}", "node.yaml")

    assert len(str(raised.value)) < 5000


def test_control_characters_in_a_file_are_escaped_in_a_report() -> None:
    with pytest.raises(ConfigError) as raised:
        parse('node: x\n"a\\e[2J": 1\n"\\ud800": 2\nrun_dir: "/\\e[2J"\n', "node.yaml")

    text = str(raised.value)
    assert text.replace("\n", "").isprintable()
    assert {"a\\x1b[2J", "\\ud800"} <= {p.path[2:-2] for p in raised.value.problems}


def test_missing_model_folders_and_interpreters_are_reported() -> None:
    mapping = {"workers": [worker(model="/models/m", python="/venv/bin/python")]}

    with pytest.raises(ConfigError) as refused:
        from_mapping(mapping, "test", HAS_NOTHING)

    assert [problem.path for problem in refused.value.problems] == [
        "workers[0].model",
        "workers[0].python",
    ]
    assert from_mapping(mapping, "test", HAS_ALL).workers[0].model == "/models/m"


def test_a_stand_in_needs_neither_a_model_nor_an_interpreter_nor_kv_transfer() -> None:
    stand_ins = [
        worker("p", engine="standin", role="prefill", model="/no/model", python="/no/python"),
        worker("d", engine="standin", role="decode", port=8200),
    ]

    config = from_mapping({"devices": "sim", "workers": stand_ins}, "test", HAS_NOTHING)

    assert len(config.workers) == 2


def test_a_prefill_and_a_decode_worker_are_fine_together() -> None:
    assert len(from_mapping(pair(), "test", HAS_ALL).workers) == 2


NIXL = {"connector": "NixlConnector"}


@pytest.mark.parametrize(
    ("role", "host", "keys", "problem"),
    [
        ("prefill", "10.0.0.7", {"peers": "elsewhere"}, []),
        ("decode", "10.0.0.7", {"peers": "elsewhere"}, []),
        ("prefill", "127.0.0.1", {"peers": "elsewhere"}, ["workers[0].host"]),
        ("decode", "127.0.0.1", {"peers": "elsewhere"}, ["workers[0].host"]),
        # The router is on this node, so only the engines elsewhere need a reachable host.
        ("decode", "127.0.0.1", {"router": {"prefill": ["http://10.0.0.7:8100"]}}, []),
        ("prefill", "127.0.0.1", {"router": {"decode": ["http://h:1"]}}, ["workers[0].host"]),
        ("prefill", "10.0.0.7", {"router": {"decode": ["http://h:1"]}}, []),
        # NIXL sends its listen address to its peers; they cannot connect to 0.0.0.0.
        ("prefill", "0.0.0.0", {"peers": "elsewhere"}, ["workers[0].host"]),
        ("decode", "0.0.0.0", {"peers": "elsewhere"}, []),
    ],
)
def test_engines_with_peers_on_other_nodes_need_a_reachable_host(
    role: str, host: str, keys: dict[str, Any], problem: list[str]
) -> None:
    mapping = {"workers": [worker("w", role=role, host=host, kv_transfer=NIXL)], **keys}

    if problem:
        assert paths(mapping) == problem
    else:
        assert from_mapping(mapping, "test", HAS_ALL).workers[0].host == host


def test_the_side_channel_host_may_differ_from_the_listen_host() -> None:
    one = worker(
        role="prefill",
        host="0.0.0.0",
        kv_transfer=NIXL,
        env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.7"},
    )

    assert from_mapping({"peers": "elsewhere", "workers": [one]}, "test", HAS_ALL)


def test_sglang_dp_attention_ranks_share_the_tensor_parallel_gpus() -> None:
    def sglang(*args: str) -> dict[str, Any]:
        return {"workers": [worker(engine="sglang", gpus=4, args=["--dp-size", "4", *args])]}

    assert paths(sglang()) == ["workers[0].gpus"]
    assert from_mapping(sglang("--enable-dp-attention"), "test", HAS_ALL)


@pytest.mark.parametrize(
    ("args", "fine"),
    [
        (["-pp", "2"], True),
        (["--pipeline-parallel-size=2"], True),
        (["--data_parallel_size", "2"], True),
        ([], False),
        (["-pp", "4"], False),
        (["--seed", "2"], False),
    ],
)
def test_all_parallel_sizes_count_towards_the_number_of_gpus(args: list[str], fine: bool) -> None:
    mapping = {"workers": [worker(gpus=4, tensor_parallel_size=2, args=args)]}

    if fine:
        assert from_mapping(mapping, "test", HAS_ALL).workers[0].tp_size == 2
    else:
        assert paths(mapping) == ["workers[0].tensor_parallel_size"]


def test_on_a_cpu_any_tensor_parallel_size_is_valid() -> None:
    config = node(worker(gpus=0, tensor_parallel_size=2), devices="cpu")

    assert config.workers[0].tp_size == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"role": "decoder"}, "workers[1].role"),
        ({"gpus": "one"}, "workers[1].gpus"),
        ({"kv_transfer": "nixl"}, "workers[1].kv_transfer"),
        ({"kv_transfer": {"connecter": "NixlConnector"}}, "workers[1].kv_transfer.connecter"),
        ({"kv_transfer": {"connector": "NixlConnector", "side_channel_port": "5600"}},
         "workers[1].kv_transfer.side_channel_port"),
        ({"port": "8100"}, "workers[1].port"),
        ({"name": "PREFILL-0"}, "workers[1].name"),
        ({"tensor_parallel_size": "4"}, "workers[1].tensor_parallel_size"),
        ({"args": "--port"}, "workers[1].args"),
        ({"model": 3}, "workers[1].model"),
        ({"engine": "vlm"}, "workers[1].engine"),
    ],
)  # fmt: skip
def test_an_invalid_value_causes_exactly_one_problem(
    change: dict[str, object], problem: str
) -> None:
    """One mistake is one problem: not also a missing peer, a missing GPU or a clash."""
    assert paths(pair(**change)) == [problem]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"decode": ["--x", "--port=1"]}, "workers[1].role_args.decode[1]"),
        ({"prefill": ["--data_parallel_size", "2"]}, "workers[1].role_args.prefill[0]"),
        ({"decode": ["--api-key", "k"]}, "workers[1].role_args.decode[0]"),
        ({"mixed": ["--x"]}, "workers[1].role_args.mixed"),
        ({"decode": "--x"}, "workers[1].role_args.decode"),
    ],
)
def test_arguments_of_a_role_are_checked_for_both_roles(
    change: dict[str, object], problem: str
) -> None:
    from_mapping(pair(role_args={"decode": ["--max-num-seqs", "9"]}), "test", HAS_ALL)

    assert paths(pair(role_args=change)) == [problem]


def test_role_args_of_a_mixed_worker_are_refused() -> None:
    mixed = worker(role="mixed", role_args={"decode": ["--x"]})

    assert paths({"workers": [mixed]}) == ["workers[0].role_args"]


@pytest.mark.parametrize("devices", ["cpu", "sim", "nvml"])
def test_invalid_devices_cause_no_problems_of_gpus(devices: str) -> None:
    assert paths({**pair(), "devices": devices.upper() + "?"}) == ["devices"]
    assert paths({**pair(gpus=[99]), "devices": "sim", "sim_devices": "100"}) == ["sim_devices"]


def test_a_worker_that_is_no_mapping_hides_no_problem_and_shifts_no_index() -> None:
    workers: list[object] = ["prefill-0", worker("a", gpus=[0]), worker("b", port=8200, gpus=[0])]

    assert paths({"workers": workers}) == ["workers[0]", "workers[2].gpus"]


def test_an_unknown_key_in_one_worker_hides_no_overlap_of_two_others() -> None:
    workers = [
        worker("a", port=1, gpus=[0], color="red"),
        worker("b", port=2, gpus=[1]),
        worker("c", port=3, gpus=[1]),
    ]

    assert paths({"workers": workers}) == ["workers[0].color", "workers[2].gpus"]


def test_a_worker_with_an_invalid_name_is_identified_by_its_index() -> None:
    workers = [worker("A", port=1, gpus=[0]), worker("b", port=1, gpus=[0])]

    with pytest.raises(ConfigError) as refused:
        from_mapping({"workers": workers}, "test", HAS_ALL)

    assert [problem.message for problem in refused.value.problems][1:] == [
        "GPU 0 already belongs to workers[0]",
        "port 1 already belongs to workers[0]",
    ]


@pytest.mark.parametrize("gpus", [10**9, [10**9], 10**30])
def test_an_absurd_number_of_gpus_is_refused_at_once(gpus: object) -> None:
    assert paths({"workers": [worker(gpus=gpus)]}) == ["workers[0].gpus"]


def test_a_password_in_env_is_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        from_mapping({"workers": [worker(env={"API_KEY": 31337})]}, "test", HAS_ALL)

    assert "31337" not in str(refused.value)


def test_the_socket_path_limit_equals_the_exporters() -> None:
    assert LONGEST_SOCKET_PATH_BYTES == LONGEST_PATH_BYTES


def test_every_worker_field_has_a_text_for_expected_values() -> None:
    schema = NodeConfig.model_json_schema()
    assert find_entry(("workers", 0, "kv_transfer", "connector", "x")).path == (
        "workers",
        0,
        "kv_transfer",
        "connector",
    )
    for path in (("workers", 0, key) for key in schema["$defs"]["Worker"]["properties"]):
        assert find_entry(path).expected != "something else"


def problems_of(read: Callable[[], NodeConfig]) -> list[Problem]:
    """What is wrong, nothing if it is fine; any other exception breaks the test."""
    try:
        read()
    except ConfigError as error:
        return list(error.problems) or [Problem("", None, "refused without a reason")]
    return []


WORKER_KEYS = [*Worker.model_fields, "x"]
OTHER_KEYS = [*Router.model_fields, *Restart.model_fields, "connector", "metrics", "currency"]
KEYS = st.sampled_from([*NodeConfig.model_fields, *WORKER_KEYS, *OTHER_KEYS])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.sampled_from(["prefill", "decode", "mixed", "NixlConnector", "sim", "1:2", 1, 8100]),
    st.sampled_from(["sglang", "elsewhere", "::1", "0.0.0.0", "http://h:1", "mooncake"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(KEYS | SCALARS, inner, max_size=4)
    ),
    max_leaves=10,
)


@FUZZ
@given(mapping=VALUES)
def test_any_data_is_accepted_or_refused_without_an_internal_error(mapping: Any) -> None:
    problems = problems_of(lambda: from_mapping(mapping, "test", HAS_NOTHING))

    assert not any("pydantic" in p.message or "refused" in p.message for p in problems)


@FUZZ
@given(value=st.dictionaries(st.sampled_from(WORKER_KEYS), VALUES, max_size=6))
def test_no_worker_hides_a_problem_elsewhere(value: dict[str, object]) -> None:
    mapping = {"nodes": "n", "workers": [worker("good", gpus=[0]), value, 3]}

    problems = problems_of(lambda: from_mapping(mapping, "test", HAS_NOTHING))

    assert {"nodes", "workers[2]"} < {problem.path for problem in problems}


@FUZZ
@given(
    router=st.dictionaries(st.sampled_from([*Router.model_fields, "x"]), VALUES, max_size=6),
    restart=st.dictionaries(st.sampled_from([*Restart.model_fields]), SCALARS, max_size=3),
)
def test_any_router_and_restart_are_checked_without_an_internal_error(
    router: dict[str, object], restart: dict[str, object]
) -> None:
    """They hide no problem elsewhere."""
    mapping = {**pair(restart=restart), "router": router, "restart": restart, "nodes": "n"}

    problems = problems_of(lambda: from_mapping(mapping, "test", HAS_ALL))

    assert "nodes" in {problem.path for problem in problems}
    assert not any("pydantic" in p.message or "refused" in p.message for p in problems)


@FUZZ
@given(text=st.text(alphabet="ab:,[]{}&*<!|-#'\"\\ \n\t01.\x00\ud800é%@`?~", max_size=30))
def test_any_text_is_accepted_or_refused_without_an_internal_error(text: str) -> None:
    problems = problems_of(lambda: parse(text, "test", HAS_NOTHING))

    assert not any("refused" in problem.message for problem in problems)


def test_a_parsed_text_equals_the_validated_yaml_mapping() -> None:
    text = (DATA / "pair.yaml").read_text(encoding="utf-8")

    assert parse(text, "test", HAS_ALL) == from_mapping(yaml.safe_load(text), "test", HAS_ALL)


def test_relative_paths_are_resolved_from_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "model").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "site" / "node.yaml"
    file.write_text(
        "run_dir: run\nlisten: {web_config: web.yml}\nbridges: {hpc_job_dir: jobs}\n"
        "workers:\n"
        "  - {name: a, role: mixed, model: ./model, python: ../bin/python, port: 8100}\n"
        "  - {name: b, role: mixed, model: org/model, python: python3, port: 8200}\n"
    )

    seen = set()
    for folder, named in (("site", "node.yaml"), ("elsewhere", "../site/node.yaml")):
        monkeypatch.chdir(tmp_path / folder)
        config = load(Path(named), ELSEWHERE)
        a, b = config.workers
        seen.add((config.run_dir, config.listen.web_config, config.bridges.hpc_job_dir))
        seen.add((a.model, a.python, b.model, b.python))
    site = f"{tmp_path}/site"
    assert seen == {
        (f"{site}/run", f"{site}/web.yml", f"{site}/jobs"),
        (f"{site}/model", f"{tmp_path}/bin/python", "org/model", "python3"),
    }
