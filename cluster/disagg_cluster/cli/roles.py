"""`disagg-node roles explain`: derives an engine's role from its markers, with reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from disagg_exporter.roles.evidence.types import Claim, Verdict


@click.command
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def explain(file: Path, as_json: bool) -> None:
    """Name an engine's role, with its confidence and the reasons.

    FILE (or - for the standard input) is JSON: {"argv": [...], "env": {...}, "labels": {...},
    "page": [lines], "name": "...", "peers": ["prefill"]}, each optional. Routers, proxies and
    clients give not_an_engine. Of the file's content only role words are printed.
    """
    from disagg_cluster.inspect.markers_file import MAX_BYTES, read_markers
    from disagg_exporter.roles.judge import explain as judge

    source = "standard input" if str(file) == "-" else str(file)
    # One byte over the limit shows that the file is too long without reading all of it.
    with click.open_file(str(file), "rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    verdict = judge(read_markers(data, source))
    click.echo(_as_json(verdict) if as_json else _as_text(verdict))


def _as_text(verdict: Verdict) -> str:
    lines = [f"role        {verdict.answer}", f"confidence  {verdict.confidence}"]
    lines += [
        f"{'why' if at == 0 else '':<10}  {_line(item)}" for at, item in enumerate(verdict.evidence)
    ]
    if not verdict.evidence:
        lines.append("why         no marker that we know")
    return "\n".join(line.rstrip() for line in lines)


def _line(item: Claim) -> str:
    says = "does not decide" if item.role == "unknown" else f"says {item.role}"
    why = f" ({item.note})" if item.note else ""
    return f"{item.source}: {item.marker} is {item.value}: {says}{why}"


def _as_json(verdict: Verdict) -> str:
    keys = ("source", "marker", "value", "role", "confidence", "note")
    whole = {
        "role": verdict.answer,
        "confidence": verdict.confidence.value,
        "source": verdict.source,
        "evidence": [{key: getattr(item, key) for key in keys} for item in verdict.evidence],
    }
    return json.dumps(whole, indent=2)
