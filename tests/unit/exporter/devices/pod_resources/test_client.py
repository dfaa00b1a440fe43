"""Which container holds which GPU, from the kubelet over real gRPC and in its own bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_exporter.devices.pod_resources.client import KEEP_SECONDS, PodResources
from disagg_exporter.devices.pod_resources.wire import (
    MAX_HOLDERS,
    GpuHolder,
    PodResourcesError,
    read_holders,
)
from support.async_tests import async_test, running, until
from support.fake_kubelet import Given, answer, fake_kubelet, field, number_field

GPU = "GPU-8f2c1d90-3e5a-4b17-9c2e-5da9abb51763"
MIG = "MIG-c73ab1c4-6cb7-59b6-be7e-21c4ac35c3b6"

# Made by protobuf 7.36 from the messages of Kubernetes' api.proto: a plain GPU beside an RDMA card
# and cores (a negative one, too), a time-sliced one and a MIG instance, a claim on two drivers.
GOLDEN = bytes.fromhex(
    "0a9f010a0970726566696c6c2d3012036c6c6d1a81010a06656e67696e65123e0a0e6e76696469612e636f6d2f67"
    "707512284750552d38663263316439302d336535612d346231372d396332652d3564613961626235313736331a02"
    "0a0012120a0872646d612f68636112066d6c78355f301a0c0001ffffffffffffffffff0122150a066d656d6f7279"
    "108080808080201a040a0208011a090a07736964656361720aa3010a086465636f64652d3012036c6c6d1a91010a"
    "06656e67696e6512440a156e76696469612e636f6d2f6770752e736861726564122b4750552d3866326331643930"
    "2d336535612d346231372d396332652d3564613961626235313736333a3a3312410a156e76696469612e636f6d2f"
    "6d69672d31672e36676212284d49472d63373361623163342d366362372d353962362d626537652d323163346163"
    "3335633362360a94010a07636c61696d656412036472611a83010a04637472302a7b12036f6e651a03647261224e"
    "0a2e0a2c6b38732e6770752e6e76696469612e636f6d2f636c61696d3d63393839343566352d646e6a732d677075"
    "2d34120e6770752e6e76696469612e636f6d1a056770752d3722056770752d34221f120f6e65742e6578616d706c"
    "652e636f6d1a056770752d3722056770752d35"
)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path: a socket's may have 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="dn-"))
    yield folder
    shutil.rmtree(folder)


def test_a_message_serialized_by_protobuf_is_read() -> None:
    assert read_holders(GOLDEN) == (
        GpuHolder(GPU, "prefill-0", "llm", "engine"),
        GpuHolder(GPU, "decode-0", "llm", "engine", 3),
        GpuHolder(MIG, "decode-0", "llm", "engine"),
        GpuHolder("gpu-4", "claimed", "dra", "ctr0"),
    )


@pytest.mark.parametrize(
    ("told_id", "gpu", "share"),
    [
        (GPU, GPU, None),
        (f"{GPU}::0", GPU, 0),
        (f"{MIG}::12", MIG, 12),
        (f"MIG-{GPU}/1/0", f"MIG-{GPU}/1/0", None),
        ("nvidia7", "nvidia7", None),
        ("nvidia0/gi3", "nvidia0/gi3", None),
        ("nvidia0/vgpu2", "nvidia0", 2),
        ("nvidia0/gi3/vgpu1", "nvidia0/gi3", 1),
    ],
)
def test_device_ids_of_the_plugins_are_parsed(told_id: str, gpu: str, share: int | None) -> None:
    (holder,) = read_holders(answer([Given("p", [told_id])]))

    assert (holder.gpu, holder.share_of) == (gpu, share)


@pytest.mark.parametrize(
    "told_id", ["mlx5_0", "GPU-1", f"{GPU}::", f"{GPU}::99999", f"{GPU}\n", "nvidia0/../x", ""]
)
def test_other_devices_are_ignored(told_id: str) -> None:
    assert read_holders(answer([Given("p", [told_id])])) == ()


@pytest.mark.parametrize(
    ("claim", "gpu"),
    [
        (Given("p", claimed=["gpu-0"]), "gpu-0"),
        (Given("p", claimed=["gpu-0-mig-1g6gb-14-0"]), "gpu-0-mig-1g6gb-14-0"),
        (Given("p", cdi=["k8s.gpu.nvidia.com/device=gpu-2"]), "gpu-2"),
        (Given("p", cdi=[f"nvidia.com/gpu={GPU}"]), GPU),
        (Given("p", claimed=["gpu-1"], cdi=[f"nvidia.com/gpu={MIG}"]), MIG),
    ],
)
def test_claimed_devices_are_identified_by_uuid_or_else_by_name(claim: Given, gpu: str) -> None:
    assert [holder.gpu for holder in read_holders(answer([claim]))] == [gpu]


def test_claims_on_other_drivers_and_the_first_form_of_claims_are_ignored() -> None:
    alpha = field(1, "class") + field(2, "claim") + field(3, field(1, "nvidia.com/gpu=0"))
    container = field(1, "engine") + field(5, alpha)
    pod = field(1, field(1, "p") + field(2, "n") + field(3, container))

    assert read_holders(pod) == ()
    assert read_holders(answer([Given("p", claimed=["gpu-0"], driver="tpu.google.com")])) == ()


@pytest.mark.parametrize("name", ["", "a\nb", 'a"} 1', "é", "x" * 254, "-a"])
def test_an_invalid_name_is_not_accepted(name: str) -> None:
    assert read_holders(answer([Given(name, [GPU])])) == ()


def test_a_device_that_two_containers_share_has_two_holders() -> None:
    pods = [Given("a", [f"{GPU}::0"]), Given("b", [f"{GPU}::1"]), Given("b", [f"{GPU}::1"])]

    assert [(h.pod, h.share_of) for h in read_holders(answer(pods))] == [("a", 0), ("b", 1)]


def test_more_holders_than_a_node_can_have_are_an_error() -> None:
    many = [Given(f"p{at}", [GPU]) for at in range(MAX_HOLDERS + 1)]

    with pytest.raises(PodResourcesError, match="more than"):
        read_holders(answer(many))


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda data: field(1, data)))
def test_invalid_bytes_are_an_error_or_empty(data: bytes) -> None:
    try:
        holders = read_holders(data)
    except PodResourcesError:
        return

    assert holders == ()


@given(st.integers(0, len(GOLDEN)), st.integers(0, 255), st.integers(0, len(GOLDEN) - 1))
def test_a_damaged_message_is_an_error_or_read_as_far_as_it_is_sound(
    end: int, byte: int, at: int
) -> None:
    damaged = bytearray(GOLDEN)
    damaged[at] = byte
    try:
        holders = read_holders(bytes(damaged[:end]))
    except PodResourcesError:
        return

    assert len(holders) <= 5


def test_unknown_fields_of_later_kubelets_are_ignored() -> None:
    later = number_field(9, 1) + field(10, "x") + b"\x5d\0\0\0\0" + b"\x61" + bytes(8)

    assert read_holders(later + answer([Given("p", [GPU])]) + later) == (
        GpuHolder(GPU, "p", "llm", "engine"),
    )


@async_test
async def test_changes_are_received_over_grpc(short_folder: Path) -> None:
    socket = short_folder / "kubelet.sock"
    with fake_kubelet(socket) as kubelet:
        kubelet.given = [Given("a", [GPU])]
        resources = PodResources(socket, 0.02)
        async with running(resources.run()):
            await until(lambda: [h.pod for h in resources.holders()] == ["a"])
            kubelet.given = [Given("b", [GPU])]
            await until(lambda: [h.pod for h in resources.holders()] == ["b"])
            kubelet.given = []
            await until(lambda: resources.holders() == ())

    assert resources.status().success
    assert resources.why() == ""


@async_test
async def test_a_kubelet_may_start_late_and_restart(short_folder: Path) -> None:
    socket = short_folder / "kubelet.sock"
    resources = PodResources(socket, 0.02)
    async with running(resources.run()):
        await until(lambda: "is not there" in resources.why())
        assert not resources.status().success
        with fake_kubelet(socket) as kubelet:
            kubelet.given = [Given("a", [GPU])]
            await until(lambda: bool(resources.holders()))
        await until(lambda: not resources.status().success)
        assert [h.pod for h in resources.holders()] == ["a"], "it ends no container while away"
        with fake_kubelet(socket) as kubelet:
            kubelet.given = [Given("b", [GPU])]
            await until(lambda: [h.pod for h in resources.holders()] == ["b"])


@async_test
async def test_the_answer_of_a_missing_kubelet_expires(short_folder: Path) -> None:
    socket = short_folder / "kubelet.sock"
    now = [0]
    with fake_kubelet(socket) as kubelet:
        kubelet.given = [Given("a", [GPU])]
        resources = PodResources(socket, 0.02, clock_ns=lambda: now[0])
        async with running(resources.run()):
            await until(lambda: bool(resources.holders()))
            kubelet.refuses = "INTERNAL"
            await until(lambda: not resources.status().success)
            assert resources.holders()
            now[0] = round((KEEP_SECONDS + 1) * 1e9)

            assert resources.holders() == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("UNIMPLEMENTED", "no podresources API"),
        ("UNAVAILABLE", "uid 0"),
        ("RESOURCE_EXHAUSTED", "larger than"),
        ("INTERNAL", "answers INTERNAL"),
    ],
)
@async_test
async def test_a_refusal_is_explained(short_folder: Path, code: str, words: str) -> None:
    socket = short_folder / "kubelet.sock"
    with fake_kubelet(socket) as kubelet:
        kubelet.refuses = code
        resources = PodResources(socket, 0.02)
        async with running(resources.run()):
            await until(lambda: words in resources.why())

    assert resources.holders() == ()


@async_test
async def test_an_old_kubelet_without_the_method_is_reported(short_folder: Path) -> None:
    socket = short_folder / "kubelet.sock"
    with fake_kubelet(socket, implemented=False):
        resources = PodResources(socket, 0.02)
        async with running(resources.run()):
            await until(lambda: "no podresources API" in resources.why())


@async_test
async def test_an_oversized_answer_is_refused(short_folder: Path) -> None:
    socket = short_folder / "kubelet.sock"
    with fake_kubelet(socket) as kubelet:
        kubelet.message = field(1, bytes(17 << 20))
        resources = PodResources(socket, 0.02)
        async with running(resources.run()):
            await until(lambda: "larger than" in resources.why())


@async_test
async def test_an_unexpected_error_fails_the_collector_until_the_next_success(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def trip(_data: bytes) -> tuple[GpuHolder, ...]:
        raise ZeroDivisionError("s3cret")

    socket = short_folder / "k.sock"
    with fake_kubelet(socket):
        resources = PodResources(socket, 0.02)
        with monkeypatch.context() as broken:
            broken.setattr("disagg_exporter.devices.pod_resources.client.read_holders", trip)
            async with running(resources.run()):
                await until(lambda: "ZeroDivisionError" in resources.why())
                assert not resources.status().success
                broken.undo()
                await until(lambda: resources.status().success)

    assert resources.why() == ""
    assert len([r for r in caplog.records if "ZeroDivisionError" in r.getMessage()]) == 1
    assert "s3cret" not in caplog.text


@async_test
async def test_without_grpcio_the_message_says_what_to_install(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = short_folder / "kubelet.sock"
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with fake_kubelet(socket):
        resources = PodResources(socket, 0.02)
        async with running(resources.run()):
            await until(lambda: "pip install 'disagg-node[kubernetes]'" in resources.why())


@async_test
async def test_a_file_that_is_no_socket_is_reported(short_folder: Path) -> None:
    path = short_folder / "kubelet.sock"
    path.write_text("")
    resources = PodResources(path, 0.02)
    async with running(resources.run()):
        await until(lambda: "is no socket" in resources.why())
