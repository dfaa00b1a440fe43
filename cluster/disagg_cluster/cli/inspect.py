"""`disagg-node doctor` and `phases`: one scan of a node, with or without its daemon."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from disagg_cluster.cli.control import left_running, socket_of
from disagg_cluster.cli.daemon_page import options, read_committed, read_page, read_view, target_of
from disagg_cluster.cli.devices import chosen_devices
from disagg_cluster.host.state_colours import STATE_COLOURS

if TYPE_CHECKING:
    from disagg_cluster.config import Attach
    from disagg_cluster.inspect.doctor.facts import Diagnosis, NodeFacts
    from disagg_cluster.inspect.phase_table import NodeShares, PhaseRow
    from disagg_cluster.prometheus.http_client import Target
    from disagg_exporter.devices.source import DeviceChoice


_COLOURS = {"fine": "green", "warn": "yellow", "wrong": "red"}


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
    """Check this node: what was found, what is missing, and how good the measurements are.

    Asks the daemon of this node, or scans the node for some seconds if none runs. Each line is
    marked fine, warn (it works, but could be better) or wrong; the last one is the most useful next
    step. Exit codes: 0 nothing is wrong, 1 something is, 2 it cannot look, 4 no daemon answers at
    --url.
    """
    from disagg_cluster.inspect.doctor.facts import Level
    from disagg_cluster.inspect.doctor.findings import examine

    facts = _facts(target_of(url, file, http_config), file, named=url is not None)
    findings = examine(facts)
    click.echo(_doctor_json(findings) if as_json else _doctor_text(findings))
    ctx.exit(int(any(finding.level is Level.WRONG for finding in findings)))


def _facts(target: Target, file: Path | None, *, named: bool) -> NodeFacts:
    from disagg_cluster.inspect.doctor import gathering

    facts = gathering.surroundings(target.url, os.environ)
    page = read_page(target, named=named)
    if page is not None:
        known = gathering.of_daemon(facts, page)
        return gathering.with_workers(known, read_view(target))
    facts = replace(facts, file=str(file or ""), left_workers=left_running(socket_of(file, None)))
    with _devices_here(file) as (choice, attach):
        why = choice.fallback.why if choice.fallback else ""
        return gathering.of_scan(facts, choice.source, why, attach)


@contextmanager
def _devices_here(file: Path | None) -> Iterator[tuple[DeviceChoice, Attach]]:
    """The devices of this node, open, and the discovery settings of a node file."""
    from disagg_cluster.config import Attach, NodeConfig
    from disagg_cluster.nodefile import load

    config = NodeConfig() if file is None else load(file)
    choice = chosen_devices(config)
    with closing(choice.source):
        yield choice, config.attach or Attach()


def _doctor_text(findings: Sequence[Diagnosis]) -> str:
    from disagg_cluster.inspect.doctor.findings import next_step
    from disagg_exporter.errors import escaped

    lines = [
        f"{click.style(f'{finding.level:<6}', fg=_COLOURS[finding.level])}  {escaped(finding.what)}"
        for finding in findings
    ]
    step = next_step(tuple(findings))
    following = escaped(step.whole_step) if step else "nothing: this is as good as it gets"
    lines.append(f"next    {following}")
    return "\n".join(lines)


def _doctor_json(findings: Sequence[Diagnosis]) -> str:
    from disagg_cluster.inspect.doctor.findings import next_step

    step = next_step(tuple(findings))
    shown = [{"level": each.level, "what": each.what, "step": each.step} for each in findings]
    return json.dumps({"findings": shown, "next": step.whole_step if step else None}, indent=2)


_EVERY_SECONDS = 2.0


@click.command
@options
@click.option("--wide", is_flag=True, help="Also show how values were measured, and full names.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def phases(
    url: str | None,
    file: Path | None,
    http_config: Path | None,
    wide: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """Show each GPU's engine and role, and how busy it is in each phase.

    Asks the daemon of this node, or scans the node for some seconds if none runs. With --url only
    that daemon is asked: exit code 4 if it does not answer. The shares are those of the last minute
    that the daemon has committed; below them stands what they mean for the pools, as on the
    daemon's HTML page.
    """
    from disagg_cluster.inspect import phase_table

    try:
        target_now = partial(target_of, url, file, http_config)
        for rows, shares in _tables(target_now, file, named=url is not None):
            if watch and not as_json:
                click.clear()
            if not rows:
                click.echo("no GPU and no engine is here", err=True)
            if as_json:
                click.echo(phase_table.as_json(rows, shares, indent=None if watch else 2))
            else:
                click.echo(phase_table.as_text(rows, wide=wide, painted=_painted))
                if shares is not None and (verdict := phase_table.verdict_text(shares)):
                    click.echo(verdict)
                if shares is not None:
                    click.echo(phase_table.when_text(shares), err=True)
            if not watch:
                return
            time.sleep(_EVERY_SECONDS)
    except KeyboardInterrupt:
        if not watch:
            raise


def _painted(state: str, shown: str) -> str:
    colour = STATE_COLOURS.get(state)
    return click.style(shown, fg=colour) if colour else shown


def _tables(
    target_now: Callable[[], Target], file: Path | None, *, named: bool
) -> Iterator[tuple[tuple[PhaseRow, ...], NodeShares | None]]:
    from disagg_cluster.inspect.phase_table import rows_of

    announced = False
    while True:
        # Resolved each time: the daemon's address and certificate may have changed.
        target = target_now()
        page = read_page(target, named=named)
        if page is not None:
            shares = read_committed(target)
            yield rows_of(page, shares), shares
        else:
            if not announced:
                click.echo(f"no daemon answers at {target.url}: looking myself", err=True)
            yield _scan(file), None
        announced = page is None


def _scan(file: Path | None) -> tuple[PhaseRow, ...]:
    from disagg_cluster.inspect import node_scan

    with _devices_here(file) as (choice, attach):
        return node_scan.rows_of(node_scan.scan_node(choice.source, attach))
