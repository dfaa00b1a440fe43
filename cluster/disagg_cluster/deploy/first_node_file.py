"""Text of a first node file, with comments, for what was found on a machine; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from disagg_cluster.deploy.yaml_text import quoted
from disagg_exporter.errors import escaped

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/-]*")
UNKNOWN_MODEL = "/path/to/a/model"
_PREFILL_PORT, _DECODE_PORT = 8100, 8200
_KV_PORTS = {_PREFILL_PORT: 14600, _DECODE_PORT: 14700}


@dataclass(frozen=True, slots=True)
class MachineFindings:
    """Findings on a machine: GPUs by name, the engines' interpreters by kind, models by name."""

    node: str
    gpus: tuple[str, ...] = ()
    pythons: tuple[tuple[str, str], ...] = ()
    models: tuple[str, ...] = ()


def first_node_file(found: MachineFindings, date: str) -> str:
    """Return a node file that is correct except for what only a person knows.

    Args:
        found: What the machine has.
        date: The current date, as displayed.
    """
    engine, python = found.pythons[0] if found.pythons else ("vllm", "")
    model = found.models[0] if found.models else UNKNOWN_MODEL
    head = [
        f"# What disagg-node runs on {escaped(found.node)}; "
        f"written by `disagg-node init` on {date}.",
        "# `disagg-node config check` says what is still wrong, `disagg-node start -c` starts it;",
        "# docs/node-file.md explains every key.",
        "",
        f"node: {_text(found.node)}",
        "# cluster: name-of-the-cluster",
        "",
        f"# {_gpus(found.gpus)}",
    ]
    if not found.gpus:
        head.append("devices: cpu")
    head += ["", "workers:"]
    notes = _notes(found)
    return "\n".join([*head, *notes, *_workers(found, engine, python, model)]) + "\n"


def _gpus(names: Sequence[str]) -> str:
    if not names:
        return "No GPU was found: the engine runs on the CPU."
    kinds = sorted({*names})
    return "Found: " + ", ".join(f"{names.count(kind)} x {kind}" for kind in kinds)


def _notes(found: MachineFindings) -> list[str]:
    notes = []
    if not found.pythons:
        notes.append("  # No interpreter with vllm or sglang was found: `python:` has to name one.")
    for kind, python in found.pythons[1:]:
        notes.append(f"  # Also found: {kind} in {escaped(python)}")
    if not found.models:
        notes.append("  # `model:` has to name a folder, or a name on the hub.")
    elif len(found.models) > 1:
        notes.append(f"  # Models in the hub's cache: {escaped(', '.join(found.models))}")
    return notes


def _workers(found: MachineFindings, engine: str, python: str, model: str) -> list[str]:
    count = len(found.gpus)
    if count < 2:
        return _worker("mixed-0", "mixed", list(range(count)), _PREFILL_PORT, engine, python, model)
    half = count // 2
    return [
        "  # One engine reads the prompts, one writes the answers, each on half of the GPUs. Where",
        "  # the GPUs are too few for that, make it one worker of the role mixed.",
        *_worker("prefill-0", "prefill", range(half), _PREFILL_PORT, engine, python, model),
        *_worker("decode-0", "decode", range(half, 2 * half), _DECODE_PORT, engine, python, model),
    ]


def _worker(
    name: str, role: str, gpus: Sequence[int], port: int, engine: str, python: str, model: str
) -> list[str]:
    lines = [
        f"  - name: {name}",
        f"    role: {role}",
        f"    engine: {engine}",
        f"    model: {_text(model)}",
        f"    gpus: [{', '.join(map(str, gpus))}]" if gpus else "    gpus: 0",
        f"    port: {port}",
    ]
    lines.append(f"    python: {_text(python)}" if python else "    # python: /venv/bin/python")
    if role != "mixed":
        lines.append(
            f"    kv_transfer: {{connector: NixlConnector, side_channel_port: {_KV_PORTS[port]}}}"
        )
    lines.append("    # args: [--max-model-len, '8192']")
    return lines


def _text(text: str) -> str:
    """Return a YAML text, quoted if needed: also a name that YAML reads as a number or as no."""
    return text if _PLAIN.fullmatch(text) and ("-" in text or "/" in text) else quoted(text)
