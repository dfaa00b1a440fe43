"""A fake kubelet and API server in a separate process, controlled by lines of input."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.kube.sizes import NODE, PODS, UUIDS

from support.fake_api_server import fake_api_server, pod_json
from support.fake_kubelet import Given, fake_kubelet

LABELS = {f"team.example/label-{at}": "v" * 60 for at in range(20)}


def main(socket: Path) -> None:
    """Serve; print the address; answer `roll N` with `done`, `start N` with the time."""
    with fake_api_server() as (api, url), fake_kubelet(socket) as kubelet:
        api.bookmark_seconds = 60.0
        for at in range(PODS):
            pod = pod_json(f"pod-{at}", node=NODE, labels=LABELS)
            # As much again as we use, as in a real spec: managed fields and the rest.
            pod["metadata"]["managedFields"] = [{"fieldsV1": "f" * 9000}]
            pod["spec"]["volumes"] = [{"name": "v" * 3000}]
            api.put(pod)
        kubelet.given = [Given(f"pod-{at}", [UUIDS[at]]) for at in range(8)]
        _say(url)
        for line in sys.stdin:
            verb, number = line.split()
            if verb == "roll":
                for at in range(int(number)):
                    api.put(pod_json(f"rolled-{at}", node=NODE, labels=LABELS))
                    api.delete(f"rolled-{at}")
                _say("done")
            else:
                name = f"engine-{number}"
                kubelet.given = [Given(name, [UUIDS[0]]), *kubelet.given[1:]]
                api.put(pod_json(name, node=NODE))
                _say(time.monotonic())


def _say(answer: object) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
