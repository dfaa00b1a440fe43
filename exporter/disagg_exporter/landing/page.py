"""The page for people as HTML: readable without style, without script, and by a screen reader.

Everything that comes from outside (names of engines, models, devices, nodes) is escaped here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files

import disagg_exporter
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
from disagg_exporter.landing.view import NodeView, view_of
from disagg_exporter.model import SLICE_NS_PER_GPU_SECOND, DeviceAccount, Snapshot, Use

WINDOW_NS = 60_000_000_000
_STEP_NS = 5_000_000_000


class AccountHistory:
    """Remembers a snapshot's accounts every few seconds, for a little more than the window.

    One thread gives it snapshots, any may ask: it swaps what it knows whole.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Mapping[str, DeviceAccount]]] = deque()
        self._known: tuple[Mapping[str, DeviceAccount], ...] = ()

    def remember(self, snapshot: Snapshot) -> None:
        """Take the accounts of the newest snapshot, if the last that were taken are old enough."""
        now_ns = snapshot.taken_ns
        if self._kept and now_ns - self._kept[-1][0] < _STEP_NS:
            return
        self._kept.append((now_ns, {account.device.gpu: account for account in snapshot.accounts}))
        # A watermark may stand still for minutes; older accounts are worth as much then.
        while now_ns - self._kept[0][0] > 2 * WINDOW_NS:
            self._kept.popleft()
        self._known = tuple(accounts for _, accounts in self._kept)

    def last_minute(self, account: DeviceAccount) -> tuple[int, dict[Use, float]]:
        """How long the device's last committed minute is, in ns, and its weighted seconds by use.

        It is shorter while the device is younger, or while nothing older is remembered.
        """
        begin_ns, base = account.start_ns, None
        for accounts in self._known:
            known = accounts.get(account.device.gpu)
            if known is None or known.start_ns != account.start_ns:
                continue
            if base is None or account.watermark_ns - known.watermark_ns >= WINDOW_NS:
                begin_ns, base = known.watermark_ns, known
        if account.watermark_ns - account.start_ns <= WINDOW_NS:
            begin_ns, base = account.start_ns, None
        slice_ns = dict.fromkeys(Use, 0)
        for sign, one in ((1, account), (-1, base)):
            for cell, value in one.slice_ns.items() if one else ():
                slice_ns[cell.use] += sign * value
        seconds = {use: max(0, value) / SLICE_NS_PER_GPU_SECOND for use, value in slice_ns.items()}
        return account.watermark_ns - begin_ns, seconds


POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page loads its own style and script and nothing else, from nowhere else."""

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
<li>Which engine of several nodes holds users' first tokens back, and why: {verdicts}</li>
<li>What the words mean: docs/accounting.md; every metric: docs/metrics.md</li>
</ul>
</footer>
</body>
</html>
"""


class Landing:
    """Makes the page.

    Args:
        name: What to call the node.
        snapshot: Returns the latest snapshot, at once; None before there is one.
        history: The devices' accounts of the last minute.
        now_ns: The snapshot's clock.
        planner_url: Where the planner of the cluster shows its page; empty if nobody says.
    """

    def __init__(
        self,
        name: str,
        snapshot: Callable[[], Snapshot | None],
        history: AccountHistory,
        now_ns: Callable[[], int],
        planner_url: str = "",
    ) -> None:
        self._name = name
        self._verdicts = _verdicts(planner_url)
        self._snapshot = snapshot
        self._history = history
        self._now_ns = now_ns
        here = files("disagg_exporter.landing")
        self._made: tuple[Snapshot | None, object, str] = (None, None, "")
        self.style = here.joinpath("landing.css").read_bytes()
        self.script = here.joinpath("landing.js").read_bytes()

    def page(self, why_dead: str, why_not_ready: str) -> str:
        """The page as it is now; the two reasons are empty where all is well.

        It is made once for a snapshot and second, however many ask.
        """
        snapshot, now_ns = self._snapshot(), self._now_ns()
        made_at = (now_ns // 1_000_000_000, bool(why_dead), why_not_ready)
        # The snapshot itself is kept: its `id` alone could be that of a later one.
        made_of, known_at, text = self._made
        if made_of is not snapshot or known_at != made_at:
            text = self._make(snapshot, now_ns, why_dead, why_not_ready)
            self._made = (snapshot, made_at, text)
        return text

    def _make(
        self, snapshot: Snapshot | None, now_ns: int, why_dead: str, why_not_ready: str
    ) -> str:
        view = None
        if snapshot is not None:
            view = view_of(snapshot, self._history.last_minute, now_ns)
        name = self._name or "disagg-node"
        return _FRAME.format(
            title=escape(_title(name, view)),
            patterns=PATTERNS,
            heading=escape(name) + (_SIMULATED if view and view.simulated else ""),
            version=escape(disagg_exporter.__version__),
            clock=_clock(view),
            main=_main(view),
            verdicts=self._verdicts,
            health=escape(f" (no: {why_dead})" if why_dead else " (yes)"),
            readiness=escape(f" (no: {why_not_ready})" if why_not_ready else " (yes)"),
        )


_SIMULATED = ' <strong class="simulated">simulated</strong>'


def _verdicts(planner_url: str) -> str:
    """Where verdicts over several nodes are to be had; a node knows its own engines only."""
    if not planner_url:
        return "disagg-node diagnose (docs/diagnosis.md)"
    return f'<a href="{escape(planner_url)}/">the planner\'s page</a>'


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
        f'<section id="sums" aria-labelledby="sums-title">{_sums(view)}</section>\n'
        f'<section id="gpus" aria-labelledby="gpus-title" tabindex="-1">'
        f"{devices_table(view)}</section>\n"
        f'<section id="engines" aria-labelledby="engines-title">{engines_table(view)}</section>\n'
    )


def _problems(view: NodeView) -> str:
    title = '<h2 id="troubles-title">What is wrong</h2>'
    if not view.problems:
        return f'{title}<p class="well">Nothing that this node knows of.</p>'
    items = "".join(
        f'<li class="{problem.severity.value}"><strong>{problem.severity.value}</strong>'
        f"<span>{escape(problem.text)}</span></li>"
        for problem in view.problems
    )
    return f'{title}<ul class="troubles">{items}</ul>'


def _sums(view: NodeView) -> str:
    split = view.split
    ratio = split.prefill_decode_ratio
    pseudo = all(row.device.is_pseudo for row in view.devices)
    of_all = f"of {view.gpus:.3g} {'CPU engines' if pseudo else 'GPUs'}, on average"
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
    when = f"Over {view.window_seconds:.0f} s, until {view.behind_seconds:.0f} s ago"
    return (
        f'<h2 id="sums-title">The node</h2><p class="when">{when}.</p>'
        f'<dl class="tiles">{tiles}</dl>{bar(split, 22)}'
        f'<p class="words">{words(split)}</p>{legend()}'
    )


def _mean(seconds: float, view: NodeView) -> str:
    return f"{seconds / view.window_seconds:.1f}" if view.window_seconds > 0 else ABSENT
