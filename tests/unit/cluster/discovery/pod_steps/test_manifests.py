"""The patches in examples/kubernetes: valid, and steps of an engine under them arrive."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from disagg_cluster.discovery.kubernetes.pods import read_pod
from disagg_cluster.discovery.pod_steps.sockets import PodStepSockets
from disagg_cluster.host.files.package_data import asset_dir
from disagg_exporter.steps.messages import StepEvent, StepRecords
from support.async_tests import async_test, until
from support.fake_api_server import uid_of
from support.manifests import Manifest, Stage, added, documents, in_order, merged

EXAMPLES = Path(str(asset_dir("examples"))) / "kubernetes"
DATA = Path(__file__).parents[4] / "data" / "kubernetes"
UID = uid_of("engine")
ENGINE = {
    "prefill": "modelserver",
    "decode": "modelserver",
    "kserve": "main",
    "kserve-prefill": "main",
}
PLUGIN_ENV = ("PYTHONPATH", "DISAGG_STEPS_SOCKET")

# The part of vLLM that matters here: it finds the plugin by its entry point's distribution, and
# passes it a step. Nothing of ours is on its path but the plugin. It drops its privileges as soon
# as it has loaded what it needs of Python: engines run as any user.
ENGINE_PROGRAM = """
import __future__, atexit, collections.abc, contextlib, os, queue, socket, struct, threading, time
import typing
from importlib.metadata import entry_points
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
found = [e.name for e in entry_points(group="vllm.stat_logger_plugins")]
assert found == ["disagg_steps"], found
from disagg_steps.sender import Facts, Sender
sender = Sender(os.environ["DISAGG_STEPS_SOCKET"])
sender.beat()
sender.step(Facts(elapsed_ns=5, generation_requests=1, generation_tokens=1), time.monotonic_ns())
assert sender.drops == 0, "not heard"
sender.close()
"""


def patched(folder: str, bases: list[Manifest]) -> dict[str, Manifest]:
    """Return kustomize's output for the bases with the patches of an example."""
    (steps,) = documents(EXAMPLES / folder / "steps.yaml")
    operations = yaml.safe_load((EXAMPLES / folder / "details.yaml").read_text(encoding="utf-8"))
    name = {base["metadata"]["name"]: base for base in bases}
    del steps["metadata"]["name"]
    return {key: added(merged(base, steps), operations) for key, base in name.items()}


def deployments() -> dict[str, Manifest]:
    plain = patched("vllm", documents(EXAMPLES / "vllm" / "deployment.yaml"))
    return plain | patched("llm-d", documents(DATA / "llm-d-pd.yaml"))


def pods() -> dict[str, Manifest]:
    """Yield the pods of every stack under our patches, including KServe's and the chart's."""
    found = {name: each["spec"]["template"] for name, each in deployments().items()}
    (kserve,) = documents(EXAMPLES / "kserve" / "steps.yaml")
    parts = {"kserve": kserve["spec"], "kserve-prefill": kserve["spec"]["prefill"]}
    for name, part in parts.items():
        preset = {"containers": [{"name": "main", "image": "vllm", "args": ["vllm serve"]}]}
        spec = merged(preset, part["template"])
        found[name] = {"metadata": {"annotations": part["annotations"]}, "spec": spec}
    (values,) = documents(EXAMPLES / "production-stack" / "values.yaml")
    (model,) = values["servingEngineSpec"]["modelSpec"]
    found["production-stack"] = _chart_pod(model)
    operations = yaml.safe_load((EXAMPLES / "lws" / "steps.yaml").read_text(encoding="utf-8"))
    for each in documents(EXAMPLES / "lws" / "leaderworkersets.yaml"):
        template = added(each, operations)["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        found[each["metadata"]["name"]] = template
    return found


def _chart_pod(model: Manifest) -> Manifest:
    """Production-stack's helm/templates/deployment-vllm-multi.yaml with these values."""
    init = dict(model["initContainer"])
    init["volumeMounts"] = init.pop("extraVolumeMounts")
    engine = {
        "name": "vllm",
        "image": f"{model['repository']}:{model['tag']}",
        "command": ["vllm", "serve", model["modelURL"], *model["vllmConfig"]["extraArgs"]],
        "env": model["env"],
        "volumeMounts": model["extraVolumeMounts"],
    }
    spec = {"initContainers": [init], "containers": [engine], "volumes": model["extraVolumes"]}
    return {"metadata": {"annotations": model["podAnnotations"]}, "spec": spec}


def engine_of(name: str, pod: Manifest) -> Manifest:
    wanted = ENGINE.get(name, "vllm")
    return next(each for each in pod["spec"]["containers"] if each["name"] == wanted)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's may have 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="dn-"))
    # Only root's own mount is between a container and its folder.
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("name", sorted(pods()))
def test_the_result_is_a_valid_pod_for_kubernetes(name: str, version: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}} | pods()[name]

    kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("name", sorted(deployments()))
def test_the_result_is_a_valid_deployment_with_all_settings_of_its_base(name: str) -> None:
    deployment = deployments()[name]
    bases = documents(EXAMPLES / "vllm" / "deployment.yaml") + documents(DATA / "llm-d-pd.yaml")
    base = next(each for each in bases if each["metadata"]["name"] == name)
    before = engine_of(name, base["spec"]["template"])
    after = engine_of(name, deployment["spec"]["template"])

    kubernetes_validate.validate(deployment, "1.33", strict=True)
    assert after["args"] == [*before["args"], "--enable-logging-iteration-details"]
    for part in ("env", "volumeMounts", "ports"):
        assert all(item in after.get(part, []) for item in before.get(part, []))


KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="our own merge is held against kubectl's where it is")
@pytest.mark.parametrize("folder", ["vllm", "llm-d"])
def test_kustomize_makes_the_same_of_the_example(folder: str, tmp_path: Path) -> None:
    base = tmp_path / "modelserver" / "gpu" / "vllm" / "base"
    base.mkdir(parents=True)
    shutil.copy(DATA / "llm-d-pd.yaml", base)
    (base / "kustomization.yaml").write_text("resources: [llm-d-pd.yaml]\n")
    shutil.copytree(EXAMPLES / folder, tmp_path / "overlays" / folder)

    made = subprocess.run(
        [KUBECTL or "", "kustomize", str(tmp_path / "overlays" / folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    found = {each["metadata"]["name"]: each for each in yaml.safe_load_all(made.stdout)}
    assert found
    assert {name: in_order(each) for name, each in found.items()} == {
        name: in_order(deployments()[name]) for name in found
    }


@pytest.mark.parametrize("name", sorted(pods()))
def test_the_volumes_added_to_an_engine_are_read_only(name: str) -> None:
    mounts = engine_of(name, pods()[name])["volumeMounts"]

    ours = [mount for mount in mounts if mount["name"].startswith("disagg-node-")]
    assert len(ours) == 2
    assert all(mount["readOnly"] for mount in ours)


@pytest.mark.parametrize("name", sorted(pods()))
@async_test
async def test_steps_of_an_engine_in_the_patched_pod_arrive(name: str, folder: Path) -> None:
    """The init container's command, the volumes and the environment, run with real programs."""
    stage = Stage(pods()[name], UID, folder / "pod", folder / "host")
    command = stage.container("disagg-node-plugin")["command"]
    copied = CliRunner().invoke(
        main, [stage.here("disagg-node-plugin", word) for word in command[1:]]
    )
    assert (command[0], copied.exit_code) == ("disagg-node", 0)
    environment = stage.environment(engine_of(name, pods()[name])["name"])
    heard: list[tuple[str, StepEvent]] = []
    told: dict[str, Any] = {"uid": UID, "name": "p", "namespace": "llm"} | stage.pod["metadata"]
    pod = read_pod({"metadata": told, "spec": stage.pod["spec"], "status": {"phase": "Running"}})
    assert pod is not None
    steps = PodStepSockets(folder / "host/run/disagg-node/pods", lambda *one: heard.append(one))
    try:
        steps.keep([pod], asyncio.get_running_loop(), is_current=True)
        await _engine(environment)
        await until(lambda: any(isinstance(told, StepRecords) for _, told in heard))
    finally:
        steps.close()

    assert {uid for uid, _ in heard} == {UID}


async def _engine(environment: dict[str, str]) -> None:
    """Run an engine that has only what the manifest gives it of ours."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-S",
        "-c",
        ENGINE_PROGRAM,
        env={name: environment[name] for name in PLUGIN_ENV},
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()


def test_a_failed_copy_of_the_plugin_is_reported_in_one_line(folder: Path) -> None:
    (folder / "disagg_steps").write_text("in the way")

    result = CliRunner().invoke(main, ["plugin", "copy", str(folder)])

    assert result.exit_code == 1
    assert result.output == (
        f"disagg-node: cannot copy the plugin into {folder}: {folder}/disagg_steps: "
        "File exists; something else is in its place: remove it or choose another DIR\n"
    )


@pytest.mark.parametrize("no_folder", ["/proc/plugin", "/sys/plugin"])
def test_an_unwritable_target_is_reported_with_a_remedy(no_folder: str) -> None:
    """The message of an init container whose volume was not mounted."""
    result = CliRunner().invoke(main, ["plugin", "copy", no_folder])

    assert result.exit_code == 1
    assert result.output.startswith(
        f"disagg-node: cannot copy the plugin into {no_folder}: {no_folder}: "
    )
    assert (
        "; DIR must be a folder in which this user may write, such as an emptyDir" in result.output
    )


def test_a_plugin_may_be_copied_over_itself(folder: Path) -> None:
    for _ in range(2):
        result = CliRunner().invoke(main, ["plugin", "copy", str(folder)])
        assert result.exit_code == 0, result.output

    assert {path.name for path in folder.iterdir()} == {"disagg_steps", "disagg_steps-1.dist-info"}
    assert all(path.stat().st_mode & 0o004 for path in folder.rglob("*"))
