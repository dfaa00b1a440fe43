"""The web page as HTML: readable without style, without script, and by a screen reader.

Everything that comes from outside (names of engines, models, devices, nodes) is escaped here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from importlib.resources import files

import disagg_exporter
from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.landing.links import PageLinks, link_items
from disagg_exporter.landing.parts import gpus_text, hour_part, pools_part
from disagg_exporter.landing.problems import NodeProblem
from disagg_exporter.landing.tables import (
    ABSENT,
    PATTERNS,
    bar,
    devices_table,
    engines_table,
    legend,
    percent,
    words,
)
from disagg_exporter.landing.values import view_json
from disagg_exporter.landing.view import NodeView, view_of
from disagg_exporter.model import SECOND_NS, Snapshot

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads only its own style and script, from this server."""

_FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/landing.css">
<noscript><meta http-equiv="refresh" content="5"></noscript>
<script src="/landing.js" defer></script>
</head>
<body>
<a class="skip" href="#gpus">Skip to the GPUs</a>
{patterns}<header>
<h1>{heading}</h1>
<p class="about">GPU time by phase, by disagg-node {version}</p>
<p class="refresh"><span id="clock">{clock}</span> <span id="live" role="status"></span>
<button id="pause" type="button" aria-pressed="false" hidden>Pause</button></p>
</header>
<main>
{main}</main>
<footer>
<h2>More</h2>
<ul id="links">
<li><a href="/metrics">/metrics</a>: everything known now, for Prometheus</li>
<li><a href="/healthz">/healthz</a>: whether the daemon itself is alive{health}</li>
<li><a href="/readyz">/readyz</a>: whether it has begun to measure{readiness}</li>
<li><a href="/view.json">/view.json</a>: this page, for programs</li>
{links}
<li>What the words mean: docs/accounting.md; every metric: docs/metrics.md</li>
</ul>
</footer>
</body>
</html>
"""


class Landing:
    """Makes the page.

    Args:
        name: The node's displayed name.
        snapshot: Returns the latest snapshot, at once; None before there is one.
        history: The devices' accounts of the last minute.
        now_ns: The snapshot's clock.
        links: Links to other pages.
    """

    def __init__(
        self,
        name: str,
        snapshot: Callable[[], Snapshot | None],
        history: AccountHistory,
        now_ns: Callable[[], int],
        links: PageLinks | None = None,
    ) -> None:
        self._name = name
        self._links = links or PageLinks()
        self._snapshot = snapshot
        self._history = history
        self._now_ns = now_ns
        here = files("disagg_exporter.landing")
        self._cached_page: tuple[Snapshot | None, object, str] = (None, None, "")
        self._cached_json: tuple[Snapshot | None, int, str] = (None, -1, "")
        self._cached_view: tuple[Snapshot | None, int, NodeView | None] = (None, -1, None)
        self.style = here.joinpath("landing.css").read_bytes()
        self.script = here.joinpath("landing.js").read_bytes()

    def page(self, why_dead: str, why_not_ready: str) -> str:
        """Return the page as it is now; the two reasons are empty where all is well.

        It is rendered once per snapshot and second, however many clients ask.
        """
        snapshot, now_ns = self._snapshot(), self._now_ns()
        made_at = (now_ns // SECOND_NS, bool(why_dead), why_not_ready)
        # The snapshot itself is kept: its `id` alone could be that of a later one.
        made_of, known_at, text = self._cached_page
        if made_of is not snapshot or known_at != made_at:
            text = self._make(self._view(snapshot, now_ns), why_dead, why_not_ready)
            self._cached_page = (snapshot, made_at, text)
        return text

    def values(self) -> str:
        """Return the same for programs, as JSON; also rendered once."""
        snapshot, now_ns = self._snapshot(), self._now_ns()
        second = now_ns // SECOND_NS
        json_of, known_at, text = self._cached_json
        if json_of is not snapshot or known_at != second:
            text = view_json(self._view(snapshot, now_ns), self._links)
            self._cached_json = (snapshot, second, text)
        return text

    def _view(self, snapshot: Snapshot | None, now_ns: int) -> NodeView | None:
        """Return the view that both show; also made once."""
        second = now_ns // SECOND_NS
        seen_of, seen_at, view = self._cached_view
        if seen_of is not snapshot or seen_at != second:
            view = None if snapshot is None else view_of(snapshot, self._history, now_ns)
            self._cached_view = (snapshot, second, view)
        return view

    def _make(self, view: NodeView | None, why_dead: str, why_not_ready: str) -> str:
        name = self._name or "disagg-node"
        return _FRAME.format(
            title=escape(_title(name, view)),
            patterns=PATTERNS,
            heading=escape(name) + (_SIMULATED if view and view.simulated else ""),
            version=escape(disagg_exporter.__version__),
            clock=_clock(view),
            main=_main(view),
            links=link_items(self._links),
            health=escape(f" (no: {why_dead})" if why_dead else " (yes)"),
            readiness=escape(f" (no: {why_not_ready})" if why_not_ready else " (yes)"),
        )


_SIMULATED = ' <strong class="simulated">simulated</strong>'


def _title(name: str, view: NodeView | None) -> str:
    count = len(view.problems) if view else 0
    return f"({count}) {name}" if count else name


def _clock(view: NodeView | None) -> str:
    if view is None:
        return "Nothing was measured yet."
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(view.taken_timestamp_seconds))
    return f"As of {clock} UTC."


def _main(view: NodeView | None) -> str:
    if view is None:
        return "<p>Nothing was measured yet.</p>\n"
    return (
        f'<section id="troubles" aria-labelledby="troubles-title">{_problems(view)}</section>\n'
        f'<section id="pools" aria-labelledby="pools-title">{pools_part(view)}</section>\n'
        f'<section id="sums" aria-labelledby="sums-title">{_sums(view)}</section>\n'
        f'<section id="hour" aria-labelledby="hour-title">{hour_part(view)}</section>\n'
        f'<section id="gpus" aria-labelledby="gpus-title" tabindex="-1">'
        f"{devices_table(view)}</section>\n"
        f'<section id="engines" aria-labelledby="engines-title">{engines_table(view)}</section>\n'
    )


_NOTHING_RUNS = (
    "<strong>Nothing runs here:</strong> no engine was found on this node. Start one, or let the "
    "daemon launch it: <code>disagg-node init</code> writes a node file. "
    "<code>disagg-node doctor</code> says where was looked, and what is missing."
)


def _problems(view: NodeView) -> str:
    title = '<h2 id="troubles-title">What is wrong</h2>'
    nothing = f'<p class="nothing">{_NOTHING_RUNS}</p>' if view.runs_nothing else ""
    if not view.problems:
        well = '<p class="well">Nothing that this node knows of.</p>'
        return f"{title}{nothing or well}"
    items = "".join(map(_problem, view.problems))
    return f'{title}{nothing}<ul class="troubles">{items}</ul>'


def _problem(problem: NodeProblem) -> str:
    lines = escape("\n".join(problem.lines))
    printed = f'<pre aria-label="Printed last">{lines}</pre>' if lines else ""
    return (
        f'<li class="{problem.severity.value}"><strong>{problem.severity.value}</strong>'
        f"<span>{escape(problem.text)}{printed}</span></li>"
    )


def _sums(view: NodeView) -> str:
    split = view.split
    ratio = split.prefill_decode_ratio
    pseudo = bool(view.devices) and all(row.device.is_pseudo for row in view.devices)
    counted = f"{view.gpus:.3g} CPU engines" if pseudo else gpus_text(view.gpus)
    of_all = f"of {counted}, on average"
    figures = (
        ("Prefill share", percent(split.prefill_share_ratio), "of the busy GPU time"),
        ("Prefill : decode", ABSENT if ratio is None else f"{ratio:.2f}", "GPU-seconds"),
        ("Prefilling", _mean(split.prefill_seconds, view), of_all),
        ("Decoding", _mean(split.decode_seconds, view), of_all),
        ("Occupancy", percent(split.occupancy_ratio), "busy, which is not full"),
    )
    tiles = "".join(
        f"<div><dt>{name}</dt><dd><b>{value}</b> <span>{unit}</span></dd></div>"
        for name, value, unit in figures
    )
    when = "Nothing was attributed yet"
    if view.window_seconds > 0:
        when = f"Over {view.window_seconds:.0f} s, until {view.behind_seconds:.0f} s ago"
    return (
        f'<h2 id="sums-title">The node</h2><p class="when">{when}.</p>'
        f'<dl class="tiles">{tiles}</dl>{bar(split, 22)}'
        f'<p class="words">{words(split)}</p>{legend()}'
    )


def _mean(seconds: float, view: NodeView) -> str:
    return f"{seconds / view.window_seconds:.1f}" if view.window_seconds > 0 else ABSENT
