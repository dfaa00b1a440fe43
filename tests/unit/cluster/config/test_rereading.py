from __future__ import annotations

from typing import Any

from disagg_cluster.config import NodeConfig
from disagg_cluster.config.rereading import reread


def node(*workers: dict[str, Any], **more: Any) -> NodeConfig:
    return NodeConfig.model_validate({"node": "n", "workers": list(workers), **more})


def worker(name: str, **more: Any) -> dict[str, Any]:
    whole = {"name": name, "role": "mixed", "engine": "vllm", "model": "m", "gpus": 0}
    return {**whole, "port": 8000 + len(name), "python": "/usr/bin/python3", **more}


def test_a_file_that_says_the_same_changes_nothing() -> None:
    found = reread(node(worker("a")), node(worker("a")))

    assert (found.workers, found.taken, found.waits) == ((), (), ())


def test_how_a_worker_is_started_is_taken_in_and_the_rest_waits() -> None:
    before = node(worker("a"), worker("bb"), worker("ccc"), cluster="east")
    after = node(
        worker("a", args=["--max-num-seqs", "64"], port=9000),
        worker("bb"),
        worker("dddd"),
        cluster="west",
    )

    found = reread(before, after)

    [taken] = found.workers
    assert (taken.name, taken.args, taken.port) == ("a", ("--max-num-seqs", "64"), 8001)
    assert found.taken == ("a: args: none → --max-num-seqs 64",)
    assert found.waits == (
        *("a: port", "ccc: is no longer in the file", "cluster", "dddd: is new in the file"),
    )


def test_secrets_are_not_told() -> None:
    before = node(worker("a", env={"TOKEN": "hunter1", "X": "1"}, args=["--api-key", "hunter2"]))
    after = node(worker("a", env={"TOKEN": "hunter3", "X": "1"}, args=["--api-key", "hunter4"]))

    told = reread(before, after).taken

    assert "hunter" not in "".join(told)
    assert "a: env: TOKEN" in told
