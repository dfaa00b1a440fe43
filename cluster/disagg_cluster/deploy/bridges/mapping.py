"""Roles of devices → the files from which dcgm-exporter takes its label `hpc_job`; pure.

dcgm-exporter, started with --hpc-job-mapping-dir, puts each line of the file that has a GPU's
number for its name on that GPU's series, one copy of them a line (internal/pkg/transformation/
hpc.go). So there is one line, the role: a second one would double every sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from disagg_exporter.model import Device, Role

_INSTANCE = re.compile(r"/gi(\d+)(/ci\d+)?$", re.ASCII)
_SILENT = (Role.NONE, Role.UNKNOWN)

TEXTS = frozenset(("", *(f"{role}\n" for role in Role)))
"""All that such a file of ours can hold: by this ours are told from a job scheduler's."""


def job_files(roles: Iterable[tuple[Device, Role]]) -> dict[str, str]:
    """Return the files' texts by their names; an empty text gives no label.

    MIG instances are named by GPU and GPU instance (`0.3`). Compute instances that share a GPU
    instance share its name: if their roles differ, it is `mixed`.
    """
    texts: dict[str, str] = {}
    for device, role in roles:
        if device.is_pseudo:
            continue
        instance = _INSTANCE.search(device.device)
        name = f"{device.index}.{instance[1]}" if instance else str(device.index)
        text = "" if role in _SILENT else f"{role}\n"
        before = texts.get(name, text)
        texts[name] = text if before in ("", text) else before if not text else f"{Role.MIXED}\n"
    return texts
