"""Which container holds which of our devices, out of what two others tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disagg_cluster.kube.join import Tenant, tenants
from disagg_cluster.kube.nouns import Container, GpuHolder, Pod
from disagg_exporter.model import Device, Role
from disagg_exporter.roles import explain

UUIDS = [f"GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb5176{at}" for at in range(8)]
DEVICES = [Device(uuid, at, "H100", f"nvidia{at}") for at, uuid in enumerate(UUIDS)]
MIG = Device("MIG-c73ab1c4-6cb7-59b6-be7e-21c4ac35c3b6", 8, "H100 MIG 1g", "nvidia7/gi3")

ENGINE = Container("engine", "vllm/vllm-openai:v0.32.0", ("--model", "m"), {}, (8000,))


def pod(name: str, *, uid: str = "", phase: str = "Running", deleted: bool = False) -> Pod:
    return Pod(
        uid or f"uid-{name}",
        name,
        "llm",
        "gpu-7",
        {"llm-d.ai/role": "prefill"},
        {"disagg-node/role": "decode"} if name == "told" else {},
        phase,
        "10.0.0.7",
        (ENGINE,),
        deleted,
    )


def holds(name: str, *gpus: str, share: int | None = None) -> list[GpuHolder]:
    return [GpuHolder(gpu, name, "llm", "engine", share) for gpu in gpus]


def only(pods: list[Pod], holders: list[GpuHolder]) -> Tenant:
    (tenant,) = tenants(pods, holders, [*DEVICES, MIG])
    return tenant


def test_a_container_has_its_devices_labels_and_page() -> None:
    tenant = only([pod("a"), pod("other")], holds("a", UUIDS[1], UUIDS[0]))

    assert tenant.gpus == (UUIDS[0], UUIDS[1])
    assert tenant.pages == ("http://10.0.0.7:8000/metrics",)
    assert explain(tenant.markers()).role is Role.PREFILL


def test_our_annotation_beats_a_label() -> None:
    assert explain(only([pod("told")], holds("told", UUIDS[0])).markers()).role is Role.DECODE


@pytest.mark.parametrize(
    ("told", "gpu"),
    [
        (UUIDS[3], UUIDS[3]),
        ("nvidia3", UUIDS[3]),
        ("gpu-3", UUIDS[3]),
        (MIG.gpu, MIG.gpu),
        ("nvidia7/gi3", MIG.gpu),
    ],
)
def test_each_of_a_devices_names_means_it(told: str, gpu: str) -> None:
    tenant = only([pod("a")], holds("a", told))

    assert (tenant.gpus, tenant.unresolved) == ((gpu,), ())


@pytest.mark.parametrize("told", ["gpu-3-mig-1g6gb-14-0", "gpu-9", "nvidia9/gi1"])
def test_a_name_that_is_surely_none_of_our_devices_is_not_guessed(told: str) -> None:
    tenant = only([pod("a")], holds("a", told))

    assert (tenant.gpus, tenant.unresolved) == ((), (told,))


def test_shares_of_one_device_have_a_tenant_each() -> None:
    joined = tenants(
        [pod("a"), pod("b")], holds("a", UUIDS[0], share=0) + holds("b", UUIDS[0], share=1)
    )

    assert [t.shares for t in joined] == [((UUIDS[0], 0),), ((UUIDS[0], 1),)]
    assert {t.gpus for t in joined} == {(UUIDS[0],)}


def test_without_the_api_server_the_kubelets_names_remain() -> None:
    tenant = only([], holds("decode-0", UUIDS[0]))

    assert (tenant.pod, tenant.pod_name, tenant.gpus) == (None, "decode-0", (UUIDS[0],))
    assert tenant.pages == ()
    assert tenant.markers().name == "decode-0"


def test_a_finished_pod_holds_nothing_whatever_the_kubelet_says() -> None:
    assert tenants([pod("a", phase="Succeeded")], holds("a", UUIDS[0])) == ()


@pytest.mark.parametrize("turn", [1, -1])
def test_the_next_pod_of_a_name_is_meant_not_the_one_that_goes(turn: int) -> None:
    old, new = pod("a", uid="old", deleted=True), pod("a", uid="new")

    tenant = only([old, new][::turn], holds("a", UUIDS[0]))

    assert tenant.pod is new


def test_a_pod_of_the_same_name_in_another_namespace_is_another() -> None:
    stranger = GpuHolder(UUIDS[0], "a", "other", "engine")

    assert only([pod("a")], [stranger]).pod is None


SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    "engine",
    [
        Container("engine", argv=("vllm", "serve", "m", "--api-key", SECRET)),
        Container("engine", argv=("sh", "-c", f"TOKEN={SECRET} vllm serve m")),
        Container("engine", argv=("--kv-transfer-config", f'{{"kv_role":"{SECRET}"}}')),
        Container("engine", env={"ROLE_NAME": SECRET, "VLLM_ADDITIONAL_ARGS": f"--x {SECRET}"}),
        Container("engine", argv=(f"\x1b[2J\n# HELP {SECRET} 1",)),
    ],
)
def test_nothing_that_a_pod_wrote_is_repeated_in_why_its_role_is_what_it_is(
    engine: Container,
) -> None:
    hostile = replace(pod("a"), labels={"llm-d.ai/role": SECRET}, containers=(engine,))

    verdict = explain(only([hostile], holds("a", UUIDS[0])).markers())

    assert SECRET not in repr(verdict)
    assert "\x1b" not in repr(verdict)
    assert SECRET not in repr(hostile)
