"""A pod of the chart run on this host: its files in a folder, its command for real."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.chart import env_of, node_files, one, planner_file, pods, render
from support.children import free_port
from support.running_node import wait_for

NODE = "gpu-node-7"
NO_CAPABILITY = {"drop": ["ALL"]}
_FOLDERS = ("/etc/disagg-node", "/etc/disagg-planner", "/etc/disagg-web", "/run/disagg-node")
PROGRAM = Path(sys.executable).with_name("disagg-node")


class Pod:
    """The pod of the only DaemonSet rendered from some values, with a port of this host.

    Its paths are below `folder`; it listens on the loopback alone.

    Args:
        values: The chart's values.
        folder: Replaces `/`.
        secrets: Files of Secrets that are not part of the chart, by their path in the pod.
        is_planner: Whether it is the planner's pod instead.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        folder: Path,
        secrets: Mapping[str, bytes] | None = None,
        *,
        is_planner: bool = False,
    ) -> None:
        self._folder = folder
        self.port = free_port()
        port = {"planner": {**values["planner"], "port": self.port}} if is_planner else {}
        manifests = render({**values, "port": self.port, "dashboards": {"enabled": False}, **port})
        [(name, pod)] = pods(manifests).items()
        files = {"/etc/disagg-node/node.yaml": node_files(manifests)[name].encode()}
        if is_planner:
            pod = one(manifests, "Deployment")["spec"]["template"]["spec"]
            files = {"/etc/disagg-planner/planner.yaml": planner_file(manifests).encode()}
        [self.container] = pod["containers"]
        for manifest in manifests:
            if manifest["kind"] == "Secret":
                for key, text in manifest["stringData"].items():
                    files[f"/etc/disagg-web/{key}"] = text.encode()
        for path, content in {**files, **(secrets or {})}.items():
            to = self._here(path)
            Path(to).parent.mkdir(parents=True, exist_ok=True)
            Path(to).write_bytes(self._here(content.decode()).encode())

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the container's command; end it by SIGTERM, as the kubelet does."""
        environment = {**os.environ, **env_of(self.container), "NODE_NAME": NODE}
        environment |= {"HOME": str(self._folder), "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
        log = self._folder / "container.log"
        argv = [*self._rights(), str(PROGRAM), *map(self._here, self.container["args"])]
        with (
            log.open("wb") as output,
            subprocess.Popen(argv, stdout=output, stderr=output, env=environment) as process,
        ):
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
                sys.stderr.write(log.read_text(encoding="utf-8")[-4000:])

    def _rights(self) -> tuple[str, ...]:
        """Return a command prefix that drops the container's dropped capabilities, if we have them.

        The container's user is not used, as the user of the tests owns the pod's files.
        """
        if os.geteuid() != 0 or self.container["securityContext"]["capabilities"] != NO_CAPABILITY:
            return ()
        return ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")

    def probed(self, probe: Mapping[str, Any]) -> bool:
        """Return the result of a probe as by the kubelet, which accepts every certificate."""
        if "tcpSocket" in probe:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return True
            return False
        asked = probe["httpGet"]
        return self.get(asked["path"], asked["scheme"].lower()) is not None

    def get(self, path: str, scheme: str, user: str = "") -> str | None:
        """Return a page, with `name:password` if given; None unless it answers 200."""
        request = urllib.request.Request(f"{scheme}://127.0.0.1:{self.port}{path}")
        if user:
            request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
        context = ssl._create_unverified_context() if scheme == "https" else None
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def wait_for_probes(self) -> None:
        """Wait until every probe of the container succeeds."""
        for kind in ("readinessProbe", "livenessProbe"):
            if probe := self.container.get(kind):
                wait_for(lambda probe=probe: self.probed(probe), f"the {kind}", 60)  # type: ignore[misc]

    def _here(self, text: str) -> str:
        for path in _FOLDERS:
            text = text.replace(path, f"{self._folder}{path}")
        if text.startswith("/etc/"):
            return f"{self._folder}{text}"
        return text.replace("metrics: :", "metrics: 127.0.0.1:")
