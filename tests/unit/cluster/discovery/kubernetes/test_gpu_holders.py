"""Which container holds which of our devices, by the kubelet's names for them."""

from __future__ import annotations

import pytest

from disagg_cluster.discovery.kubernetes.pods import GpuHolder, Tenant, tenants
from disagg_exporter.model import Device

UUIDS = [f"GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb5176{at}" for at in range(8)]
DEVICES = [Device(uuid, at, "H100", f"nvidia{at}") for at, uuid in enumerate(UUIDS)]
MIG = Device("MIG-c73ab1c4-6cb7-59b6-be7e-21c4ac35c3b6", 8, "H100 MIG 1g", "nvidia7/gi3")


def holds(name: str, *gpus: str, share: int | None = None) -> list[GpuHolder]:
    return [GpuHolder(gpu, name, "llm", "engine", share) for gpu in gpus]


def only(holders: list[GpuHolder]) -> Tenant:
    (tenant,) = tenants(holders, [*DEVICES, MIG]).values()
    return tenant


def test_a_container_has_all_its_devices() -> None:
    held = tenants(holds("a", UUIDS[1], UUIDS[0]), DEVICES)

    assert held == {("llm", "a", "engine"): Tenant(tuple(UUIDS[:2]))}


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
def test_each_name_of_a_device_resolves_to_it(told: str, gpu: str) -> None:
    tenant = only(holds("a", told))

    assert (tenant.gpus, tenant.unresolved) == ((gpu,), ())


@pytest.mark.parametrize("told", ["gpu-3-mig-1g6gb-14-0", "gpu-9", "nvidia9/gi1"])
def test_an_unknown_name_is_not_guessed(told: str) -> None:
    tenant = only(holds("a", told))

    assert (tenant.gpus, tenant.unresolved) == ((), (told,))


def test_an_ambiguous_name_resolves_to_no_device() -> None:
    twins = [Device(uuid, at, "H100", "nvidia0") for at, uuid in enumerate(UUIDS[:2])]

    (tenant,) = tenants(holds("a", "gpu-0"), twins).values()

    assert tenant.unresolved == ("gpu-0",)


def test_shares_of_one_device_have_a_tenant_each() -> None:
    joined = tenants(holds("a", UUIDS[0], share=0) + holds("b", UUIDS[0], share=1), DEVICES)

    assert {pod: tenant.gpus for (_, pod, _), tenant in joined.items()} == {
        "a": (UUIDS[0],),
        "b": (UUIDS[0],),
    }


def test_a_pod_of_the_same_name_in_another_namespace_is_another() -> None:
    other = GpuHolder(UUIDS[1], "a", "other", "engine")

    assert len(tenants([*holds("a", UUIDS[0]), other], DEVICES)) == 2
