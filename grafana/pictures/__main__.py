r"""Draws the dashboards into docs/dashboards: `make pictures DRAW=COMMAND`.

COMMAND draws one dashboard and is no part of this repository. It is called as

    COMMAND DASHBOARD.json --prometheus URL --out PNG --from UNIX --to UNIX \
        --scrape-interval 15s --var NAME=VALUE
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
from grafana.pictures.history import served, write
from grafana.pictures.recording import lines
from grafana.pictures.situations import SITUATIONS, Situation
from PIL import Image

from support.backfill import prometheus_with
from support.planned_past import past

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "grafana" / "dashboards"
PICTURES = ROOT / "docs" / "dashboards"
OF_DEMO = ("cluster", "fleet", "node", "engines", "exporter")
_SHOWN_SECONDS = 900
_DEMO_SECONDS = 900
_COLOURS = 128
_HEAD_PIXELS = 940


def main() -> int:
    """Draw what was asked for; 1 where something could not be drawn."""
    parser = argparse.ArgumentParser(prog="make pictures", description=__doc__)
    parser.add_argument("--draw", required=True, metavar="COMMAND")
    names = ["demo", "planner", *(situation.name for situation in SITUATIONS)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SITUATION")
    options = parser.parse_args()
    draw = Draw(shlex.split(options.draw))
    for name in options.only:
        click.echo(f"{name} …", err=True)
        with tempfile.TemporaryDirectory() as folder:
            if name == "demo":
                _demo(draw, Path(folder))
            elif name == "planner":
                _planner(draw, Path(folder))
            else:
                [situation] = [each for each in SITUATIONS if each.name == name]
                _situation(draw, situation, Path(folder))
    return 1 if draw.failed else 0


class Draw:
    """The command, and what it could not draw."""

    def __init__(self, command: list[str]) -> None:
        self.failed: list[Path] = []
        self._command = command

    def __call__(
        self,
        dashboard: str,
        url: str,
        name: str,
        span: tuple[int, int],
        *choices: str,
        scrape_seconds: int = 15,
    ) -> None:
        """Draw a dashboard over a span of Unix time; the picture gets few colours, to be small."""
        picture = PICTURES / f"{name}.png"
        picture.unlink(missing_ok=True)
        subprocess.run(
            [
                *self._command,
                *(str(DASHBOARDS / f"{dashboard}.json"), "--prometheus", url),
                *("--out", str(picture), "--from", str(span[0]), "--to", str(span[1])),
                *("--scrape-interval", f"{scrape_seconds}s"),
                *(part for choice in choices for part in ("--var", choice)),
            ],
            stdout=subprocess.DEVNULL,
        )
        if not picture.exists():
            click.echo(f"{picture} was not drawn", err=True)
            self.failed.append(picture)
            return
        _shrink(picture)

    def head(self, name: str) -> None:
        """Cut the first screen out of a picture."""
        with Image.open(PICTURES / f"{name}.png") as whole:
            whole.crop((0, 0, whole.width, _HEAD_PIXELS)).save(
                PICTURES / f"{name}-head.png", optimize=True
            )


def _shrink(picture: Path) -> None:
    with Image.open(picture) as whole:
        few = whole.convert("RGB").quantize(
            _COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
        )
    few.save(picture, optimize=True)


def _situation(draw: Draw, situation: Situation, folder: Path) -> None:
    end = int(time.time())
    data = folder / "data"
    scrape = situation.scrape_seconds
    seen = situation.seen_seconds
    write(
        lines(situation, seen, end),
        data,
        end_seconds=end,
        seconds=seen,
        scrape_seconds=scrape,
    )
    with served(data, scrape) as server:
        for dashboard in situation.dashboards:
            chosen = [f"node={situation.node}"] if dashboard == "node" else []
            url = f"http://127.0.0.1:{server.port}"
            span, name = (end - _SHOWN_SECONDS, end), f"{dashboard}-{situation.name}"
            draw(dashboard, url, name, span, *chosen, scrape_seconds=scrape)


def _planner(draw: Draw, folder: Path) -> None:
    now = int(time.time())
    with prometheus_with(past(now), folder) as url:
        draw("capacity", url, "capacity", (now - 3600, now))


def _demo(draw: Draw, folder: Path) -> None:
    with _running_demo(folder / "log") as url:
        # Pictures show this much of its past.
        time.sleep(_DEMO_SECONDS)
        now = int(time.time())
        for dashboard in OF_DEMO:
            chosen = ["node=demo-node"] if dashboard == "node" else []
            draw(dashboard, url, dashboard, (now - _DEMO_SECONDS + 360, now), *chosen)
        draw("capacity", url, "capacity-without-planner", (now - _DEMO_SECONDS + 360, now))
    draw.head("cluster")


@contextlib.contextmanager
def _running_demo(log: Path) -> Iterator[str]:
    """The demo; yields the address of its Prometheus."""
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "disagg_cluster.cli", "demo", "--listen", "127.0.0.1:0"],
            stdout=out,
            stderr=out,
        )
    try:
        found = None
        while found is None and demo.poll() is None:
            time.sleep(0.5)  # its output goes to a file, which tells of no line
            found = re.search(r"^Prometheus: (\S+)", log.read_text("utf-8"), re.MULTILINE)
        if found is None:
            raise SystemExit(f"the demo ended: {log.read_text('utf-8')}")
        yield found[1]
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(60)


if __name__ == "__main__":
    sys.exit(main())
