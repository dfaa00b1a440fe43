"""Which pod security standard each profile keeps to, and users that a cluster draws itself."""

from __future__ import annotations

from typing import Any

import pytest

from support.chart import ATTACH, LAUNCH, one, pods, render, values_of
from support.pod_security import level

LEVELS = {
    "attach-default": "privileged",
    "attach-least-rights": "restricted",
    "launch-eight-gpus": "restricted",
    "launch-openshift": "restricted",
    "launch-pools": "privileged",
}
"""What docs/kubernetes.md says of them."""


@pytest.mark.parametrize(("case", "expected"), LEVELS.items())
def test_pods_meet_their_documented_security_standard(case: str, expected: str) -> None:
    assert {level(pod) for pod in pods(render(values_of(case))).values()} == {expected}


@pytest.mark.parametrize(
    "broken",
    [
        {"securityContext": {}},
        {"hostPID": True},
        {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]},
        {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}},
    ],
)
def test_a_pod_with_more_rights_is_not_classified_as_restricted(broken: dict[str, Any]) -> None:
    [pod] = pods(render(values_of("attach-least-rights"))).values()

    assert level(pod) == "restricted"
    assert level(pod | broken) != "restricted"


def test_users_and_groups_can_be_left_to_the_cluster() -> None:
    manifests = render(values_of("launch-openshift"))
    planner = one(manifests, "Deployment")["spec"]["template"]["spec"]

    for pod in (*pods(manifests).values(), planner):
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    attach = values_of("attach-least-rights")
    attach["attach"]["runAsUser"] = None
    [pod] = pods(render(attach)).values()
    assert "runAsUser" not in pod["securityContext"]


@pytest.mark.parametrize("case", ["attach-least-rights", "launch-strict"])
def test_a_user_of_ten_digits_is_set(case: str) -> None:
    """OpenShift's users are that high; a template writes such a number as 1.00068e+09."""
    values = values_of(case)
    profile = values.get("profile", "attach")
    values[profile] |= {"runAsUser": 1_000_680_000}

    for pod in pods(render(values)).values():
        assert pod["securityContext"]["runAsUser"] == 1_000_680_000
        assert pod["securityContext"]["runAsGroup"] == 1_000_680_000


@pytest.mark.parametrize("case", [ATTACH[0], LAUNCH[0]])
def test_security_context_values_override_the_defaults(case: str) -> None:
    values = values_of(case)
    profile = values.setdefault(str(values.get("profile", "attach")), {})
    profile["podSecurityContext"] = {
        "seLinuxOptions": {"type": "spc_t"},
        "seccompProfile": {"type": "Unconfined"},
    }

    for pod in pods(render(values)).values():
        context = pod["securityContext"]
        assert context["seLinuxOptions"] == {"type": "spc_t"}
        assert context["seccompProfile"] == {"type": "Unconfined"}
        assert "runAsUser" in context
