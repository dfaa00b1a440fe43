from __future__ import annotations

from typing import Any

import pytest

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.rereading import reread


def node(*workers: dict[str, Any], **more: Any) -> NodeConfig:
    return NodeConfig.model_validate({"node": "n", "workers": list(workers), **more})


def worker(name: str, **more: Any) -> dict[str, Any]:
    whole = {"name": name, "role": "mixed", "engine": "vllm", "model": "m", "gpus": 0}
    return {**whole, "port": 8000 + len(name), "python": "/usr/bin/python3", **more}


def test_an_unchanged_file_changes_nothing() -> None:
    found = reread(node(worker("a")), node(worker("a")))

    assert (found.workers, found.taken, found.waits) == ((), (), ())


def test_changed_worker_arguments_are_applied_and_other_changes_deferred() -> None:
    before = node(worker("a"), worker("bb"), cluster="east")
    after = node(
        worker("a", args=["--max-num-seqs", "64"], port=9000), worker("bb"), cluster="west"
    )

    found = reread(before, after)

    [taken] = found.workers
    assert (taken.name, taken.args, taken.port) == ("a", ("--max-num-seqs", "64"), 8001)
    assert found.taken == ("a: args: none → --max-num-seqs 64",)
    assert found.waits == ("a: port", "cluster")


def test_deferred_changes_are_listed_by_their_keys() -> None:
    listen, tls = {"metrics": "127.0.0.1:9900"}, {"ca_file": "/ca.pem"}
    after = node(worker("a", tls=tls), listen=listen, control={"grpc": {}})

    assert reread(node(worker("a")), after).waits == (
        "a: tls.ca_file",
        "control.grpc",
        "listen.metrics",
    )


def test_added_and_removed_workers_are_applied() -> None:
    before = node(worker("a"), worker("bb"))
    after = node(worker("bb"), worker("ccc", gpus=[2, 3]), worker("dddd", gpus=1))

    found = reread(before, after)

    assert [each.name for each in found.added] == ["ccc", "dddd"]
    assert found.removed == ("a",)
    assert found.come == (
        "ccc: is new in the file: mixed on GPUs 2, 3",
        "dddd: is new in the file: mixed on 1 GPU",
    )
    assert found.gone == ("a: is no longer in the file",)
    assert (found.taken, found.waits) == ((), ())


@pytest.mark.parametrize(("membership", "taken"), [("live", True), ("fixed", False)])
def test_added_and_removed_workers_are_deferred_if_the_router_is_fixed(
    membership: str, taken: bool
) -> None:
    router = {"port": 8080, "membership": membership, "python": "/usr/bin/python3"}

    found = reread(node(worker("a"), router=router), node(worker("bb"), router=router))

    assert bool(found.added and found.removed and found.come and found.gone) is taken
    assert bool(found.waits) is not taken
    assert taken or "a: is no longer in the file, and the router's engines are fixed" in found.waits


def test_only_the_changed_part_of_long_arguments_is_reported() -> None:
    same, end = [f"--option-{number}=value" for number in range(20)], ["--trust-remote-code"]
    before = node(worker("a", args=[*same, "--max-num-seqs", "64", *end]))

    def told(*args: str) -> str:
        [text] = reread(before, node(worker("a", args=list(args)))).taken
        return text

    changed = told(*same, "--max-num-seqs", "128", *end)
    assert changed == "a: args: … --max-num-seqs 64 → --max-num-seqs 128 …"
    assert told(*same, "--max-num-seqs", "64") == "a: args: … 64 --trust-remote-code → 64"
    assert (
        told(*same, *end) == "a: args: … --option-19=value --max-num-seqs 64 → --option-19=value …"
    )
    assert told(*end) == f"a: args: {' '.join(same)} --max-num-seqs 64 → none …"


def test_secrets_are_not_reported() -> None:
    before = node(worker("a", env={"TOKEN": "hunter1", "X": "1"}, args=["--api-key", "hunter2"]))
    after = node(worker("a", env={"TOKEN": "hunter3", "X": "1"}, args=["--api-key", "hunter4"]))

    told = reread(before, after).taken

    assert "hunter" not in "".join(told)
    assert "a: env: TOKEN" in told
