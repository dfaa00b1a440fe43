"""`disagg-node doctor`: what was found, what is missing, and how good the numbers are."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from disagg_cluster.cli.daemon_page import door_of, options, read_page
from disagg_cluster.cli.start import chosen_devices
from disagg_cluster.config import Attach, NodeConfig
from disagg_cluster.inspect.doctor import gathering
from disagg_cluster.inspect.doctor.facts import Facts, Finding, Level
from disagg_cluster.inspect.doctor.findings import examine, next_step
from disagg_cluster.nodefile import load
from disagg_cluster.prometheus.http_client import Door


@click.command
@options
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(
    ctx: click.Context,
    url: str | None,
    file: Path | None,
    http_config: Path | None,
    as_json: bool,
) -> None:
    """Say what is found on this node, what is missing, and how good the numbers are.

    Asks the daemon of this node; where none runs, looks itself for some seconds. Ends with the one
    step that makes most better. Exit codes: 0 nothing is wrong, 1 something is, 2 it cannot look.
    """
    facts = _facts(door_of(url, file, http_config), file)
    findings = examine(facts)
    click.echo(_as_json(findings) if as_json else _as_text(findings))
    ctx.exit(int(any(finding.level is Level.WRONG for finding in findings)))


def _facts(door: Door, file: Path | None) -> Facts:
    facts = gathering.surroundings(door.url, os.environ)
    page = read_page(door)
    if page is not None:
        return gathering.of_daemon(facts, page)
    config = NodeConfig() if file is None else load(file)
    choice = chosen_devices(config)
    try:
        why = choice.fallback.why if choice.fallback else ""
        return gathering.of_look(facts, choice.source, why, config.attach or Attach())
    finally:
        choice.source.close()


def _as_text(findings: Sequence[Finding]) -> str:
    lines = [f"{finding.level:<6}  {finding.what}" for finding in findings]
    step = next_step(tuple(findings))
    lines.append(f"next    {step.step}" if step else "next    nothing: this is as good as it gets")
    return "\n".join(lines)


def _as_json(findings: Sequence[Finding]) -> str:
    step = next_step(tuple(findings))
    return json.dumps(
        {
            "findings": [
                {"level": f.level.value, "what": f.what, "step": f.step} for f in findings
            ],
            "next": step.step if step else None,
        },
        indent=2,
    )
