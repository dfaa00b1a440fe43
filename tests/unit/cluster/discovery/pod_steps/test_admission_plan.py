"""Which pods get a socket: those that the API server confirms and that request it."""

from __future__ import annotations

import uuid

import pytest

from disagg_cluster.discovery.kubernetes.pods import Pod
from disagg_cluster.discovery.pod_steps.admission import (
    ANNOTATION,
    MAX_SOCKETS,
    STRANGE_SECONDS,
    Plan,
    plan_sockets,
)
from support.fake_api_server import uid_of

A, B = uid_of("a"), uid_of("b")


def pod(
    uid: str, proposed_name: str | None = "true", phase: str = "Running", deleted: bool = False
) -> Pod:
    annotations = {} if proposed_name is None else {ANNOTATION: proposed_name}
    return Pod(uid, "p", "llm", annotations=annotations, phase=phase, deleted=deleted)


def test_a_requesting_pod_gets_a_socket_and_a_gone_one_loses_it() -> None:
    assert plan_sockets([pod(A)], [], {}, is_current=True) == Plan(begin=(A,))
    assert plan_sockets([pod(A)], [A], {A: 0}, is_current=True) == Plan()
    assert plan_sockets([], [A], {A: 0}, is_current=True) == Plan(end=(A,), remove=(A,))


@pytest.mark.parametrize("proposed_name", [None, "", "false", "True", "yes", "true\n"])
def test_only_the_exact_annotation_is_a_request(proposed_name: str | None) -> None:
    assert plan_sockets([pod(A, proposed_name)], [], {}, is_current=True) == Plan()


def test_starting_and_ending_pods_have_sockets_and_ended_ones_do_not() -> None:
    pods = [pod(A, phase="Pending"), pod(B, deleted=True)]

    assert plan_sockets(pods, [], {}, is_current=True).begin == (A, B)
    assert plan_sockets([pod(A, phase="Failed")], [A], {A: 0}, is_current=True) == Plan(end=(A,))


def test_the_folder_of_a_pod_not_known_yet_is_kept() -> None:
    assert plan_sockets([], [], {A: STRANGE_SECONDS - 1}, is_current=True) == Plan()
    assert plan_sockets([], [], {A: STRANGE_SECONDS + 1}, is_current=True) == Plan(remove=(A,))


def test_no_folder_is_removed_while_the_api_server_is_silent() -> None:
    assert plan_sockets([], [], {A: STRANGE_SECONDS + 1}, is_current=False) == Plan()
    assert plan_sockets([], [A], {A: 0}, is_current=False).remove == ()


@pytest.mark.parametrize("name", ["..", "steps.sock", A.upper(), f"{A}x", "lost+found", ""])
def test_folders_not_named_by_a_uid_are_kept(name: str) -> None:
    assert plan_sockets([], [], {name: STRANGE_SECONDS + 1}, is_current=True) == Plan()


def test_an_invalid_uid_makes_no_path() -> None:
    assert plan_sockets([pod("../../etc")], [], {}, is_current=True) == Plan()


def test_new_pods_displace_no_existing_ones() -> None:
    uids = [str(uuid.UUID(int=at)) for at in range(MAX_SOCKETS + 2)]
    heard = uids[2:]

    decided = plan_sockets([pod(uid) for uid in uids], heard, {}, is_current=True)

    assert decided == Plan(left_out=(uids[0], uids[1]))
