from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from disagg_exporter.landing.history import AccountHistory
from disagg_exporter.landing.links import PageLinks
from disagg_exporter.landing.page import Landing
from disagg_exporter.landing.problems import Severity
from disagg_exporter.landing.tables import bar, percent, words
from disagg_exporter.landing.view import TimeBreakdown, view_of
from disagg_exporter.model import (
    Cell,
    Device,
    DeviceAccount,
    EngineCapacity,
    EnginePage,
    EngineState,
    Method,
    Reason,
    Role,
    Snapshot,
    Throttle,
    Use,
    WorkerStatus,
)
from support.snapshots import (
    FRESH_UNTIL_NS,
    GIVEN_UP,
    NOW_SECONDS,
    SECOND,
    TAKEN_NS,
    golden_snapshot,
    slice_ns,
)

HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def account(
    seconds: dict[Use, float], watermark_seconds: float, start_seconds: float = 0
) -> DeviceAccount:
    """An account of one device; times are seconds of the snapshot's clock."""
    cells = slice_ns({Cell(Role.PREFILL, use): value for use, value in seconds.items()})
    device = Device("GPU-a", 0, "H100", "nvidia0")
    start_ns, mark_ns = round(start_seconds * SECOND), round(watermark_seconds * SECOND)
    return DeviceAccount(device, Role.PREFILL, start_ns, mark_ns, cells)


def at(seconds: float, books: DeviceAccount) -> Snapshot:
    now_ns = round(seconds * SECOND)
    return Snapshot(now_ns, 0.0, now_ns + 10 * SECOND, (books.device,), accounts=(books,))


def page(snapshot: Snapshot | None, now_ns: int = TAKEN_NS) -> str:
    return Landing("gpu-7", lambda: snapshot, AccountHistory(), lambda: now_ns).page("", "")


def text_of(html: str) -> str:
    """Return the readable text, with a bar between the pieces."""

    class Reader(HTMLParser):
        pieces: tuple[str, ...] = ()

        def handle_data(self, data: str) -> None:
            self.pieces += (data.strip(),)

    reader = Reader()
    reader.feed(html)
    return "|".join(piece for piece in reader.pieces if piece)


def test_a_young_device_is_shown_since_its_start() -> None:
    books = account({Use.PREFILL: 10.0, Use.IDLE: 20.0}, 130, start_seconds=100)

    window_ns, seconds = AccountHistory().last_minute(books)

    assert window_ns == 30 * SECOND
    assert (seconds[Use.PREFILL], seconds[Use.IDLE]) == (10.0, 20.0)


def test_an_old_device_is_shown_over_its_last_minute() -> None:
    history = AccountHistory()
    for now in range(0, 300):  # one GPU, half busy until 200 s, then fully busy
        busy = min(now, 200) / 2 + max(0, now - 200)
        books = account({Use.PREFILL: busy, Use.IDLE: now - busy}, now)
        history.remember(at(now + 6, books))

    window_ns, seconds = history.last_minute(books)

    assert 60 * SECOND <= window_ns <= 65 * SECOND
    assert seconds[Use.PREFILL] == pytest.approx(window_ns / SECOND)
    assert seconds[Use.IDLE] == pytest.approx(0.0)


def test_nothing_is_subtracted_from_a_reset_account() -> None:
    history = AccountHistory()
    history.remember(at(500, account({Use.PREFILL: 400.0}, 494)))
    again = account({Use.PREFILL: 90.0}, 1090, start_seconds=1000)

    assert history.last_minute(again) == (
        90 * SECOND,
        {**dict.fromkeys(Use, 0.0), Use.PREFILL: 90.0},
    )


def test_ratios_are_those_of_the_accounting() -> None:
    split = TimeBreakdown({Use.PREFILL: 3.0, Use.DECODE: 1.0, Use.IDLE: 4.0, Use.UNOBSERVED: 2.0})

    assert split.prefill_share_ratio == 0.75
    assert split.prefill_decode_ratio == 3.0
    assert split.occupancy_ratio == 0.5  # of the eight seconds that were observed
    assert split.ratios[Use.PREFILL] == 0.3


def test_unknown_values_are_absent() -> None:
    nearly_idle = TimeBreakdown({Use.PREFILL: 0.5, Use.DECODE: 0.4, Use.IDLE: 59.1})

    assert (nearly_idle.prefill_share_ratio, nearly_idle.prefill_decode_ratio) == (None, None)
    assert TimeBreakdown({Use.PREFILL: 2.0}).prefill_decode_ratio is None
    assert TimeBreakdown({Use.UNOBSERVED: 2.0}).occupancy_ratio is None
    assert (TimeBreakdown({}).ratios, words(TimeBreakdown({})), percent(None)) == (
        {},
        "not known yet",
        "-",
    )


def test_a_bar_is_as_long_as_its_parts() -> None:
    svg = bar(TimeBreakdown({Use.PREFILL: 1.0, Use.DECODE: 2.0, Use.IDLE: 5.0}), 14)

    assert re.findall(r'class="(\w+)" x="([\d.]+)%" width="([\d.]+)%"', svg) == [
        ("prefill", "0.00", "12.50"),
        ("decode", "12.50", "25.00"),
        ("idle", "37.50", "62.50"),
    ]
    assert "style=" not in svg


def test_the_view_sums_the_times_of_its_devices() -> None:
    view = view_of(golden_snapshot(), AccountHistory(), TAKEN_NS)

    assert view.split.seconds[Use.DECODE] == pytest.approx(81.5)
    assert view.gpus == pytest.approx(2 + 3 / 7)
    assert [row.engines for row in view.devices] == [("prefill-0",), ("decode-0",), ()]
    assert view.behind_seconds == pytest.approx(30.0)


def test_a_stale_snapshot_shows_no_accounts_and_no_readings() -> None:
    view = view_of(golden_snapshot(), AccountHistory(), FRESH_UNTIL_NS + 1)

    assert {(row.split, row.reading, row.role) for row in view.devices} == {
        (None, None, Role.UNKNOWN)
    }
    assert view.problems[0].text.startswith("The daemon has measured nothing for 10 s")


def test_all_problems_are_listed_most_severe_first() -> None:
    golden = golden_snapshot()
    hot = replace(golden.readings[0], throttles=(Throttle.THERMAL, Throttle.POWER_CAP))
    snapshot = replace(
        golden,
        readings=(hot, *golden.readings[1:]),
        workers=(
            WorkerStatus("prefill-0", "starting", 0, None),
            WorkerStatus("prefill-1", "ready", 0, None, drained=True),
            *golden.workers[1:],
        ),
    )
    troubles = view_of(snapshot, AccountHistory(), TAKEN_NS).problems

    assert [problem.text for problem in troubles] == [
        "Worker decode-0 has crashed and waits to be started again, 3 times started again "
        "(next start in 8 s).",
        "Engine decode-0 does not answer its health probe.",
        "The router holds decode-0 unwell and sends it no requests.",
        "GPU 2 cannot be read.",
        "The clocks of GPU 0 are held back: it is too hot.",
        "Worker decode-0 is paused: it is neither killed nor started.",
        "Worker prefill-0 is starting.",
        "Worker prefill-1 is drained by hand: it gets no requests until resumed.",
    ]
    severities = [problem.severity for problem in troubles]
    assert severities == [Severity.BROKEN] * 5 + [Severity.NOTICE] * 3


def test_an_engine_that_was_found_is_missed_by_its_page_and_not_by_a_probe() -> None:
    snapshot = replace(golden_snapshot(), workers=())
    troubles = view_of(snapshot, AccountHistory(), TAKEN_NS).problems

    assert "The metrics page of engine decode-0 cannot be read." in [each.text for each in troubles]
    assert not [each for each in troubles if "health probe" in each.text]


def test_the_page_contains_its_values_as_text() -> None:
    told = text_of(page(golden_snapshot()))

    assert "gpu-7|simulated" in told
    assert "Engine decode-0 does not answer its health probe." in told
    assert "prefill-0|prefill 64%, decode 2%, idle 33%, unattributed 1%" in told
    assert "(5) gpu-7" in told


def test_an_engines_fullness_and_bottleneck_are_shown() -> None:
    golden = golden_snapshot()
    unknown = replace(golden, capacities=(replace(golden.capacities[0], used_ratio=None),))

    assert "|50%|62%, by compute|decode-0|" in text_of(page(golden))
    assert "|7%|25%|" in text_of(page(golden))
    assert "|50%|-|decode-0|" in text_of(page(unknown))


def test_the_cache_of_an_engine_known_by_fpm_is_as_full_as_its_own_page_says() -> None:
    """As in the metrics: its messages give tokens, and a share only where the size is known."""
    golden = golden_snapshot()
    accounts = tuple(
        replace(a, method=Method.FPM, kv_usage_ratio=0.0) for a in golden.engine_accounts
    )
    engines = tuple(
        replace(engine, page=replace(engine.page or EnginePage("vllm", 0), kv_usage_ratio=0.75))
        for engine in golden.engines
    )
    told = replace(golden, engine_accounts=accounts, engines=engines)
    untold = replace(told, engines=tuple(replace(e, page=None) for e in engines))

    assert "|75%|62%, by compute|" in text_of(page(told))
    assert "|-|62%, by compute|" in text_of(page(untold))


def test_the_page_is_rendered_once_per_snapshot_and_second() -> None:
    now = [TAKEN_NS]
    shown = [golden_snapshot()]
    landing = Landing("gpu-7", lambda: shown[0], AccountHistory(), lambda: now[0])
    first = landing.page("", "")

    assert landing.page("", "") is first
    assert landing.page("", "not yet") is not first
    now[0] += SECOND
    second = landing.page("", "")
    assert second is not first
    shown[0] = replace(shown[0], simulated=False)
    assert landing.page("", "") is not second


def test_the_json_is_rendered_once_per_snapshot_and_second() -> None:
    now = [TAKEN_NS]
    shown = [golden_snapshot()]
    landing = Landing("gpu-7", lambda: shown[0], AccountHistory(), lambda: now[0])
    first = landing.values()

    assert landing.values() is first
    now[0] += SECOND
    second = landing.values()
    assert second is not first
    shown[0] = replace(shown[0], simulated=False)
    assert landing.values() is not second


def test_a_page_is_served_before_the_first_snapshot() -> None:
    assert "Nothing was measured yet." in text_of(page(None))


def test_a_node_without_engines_or_problems_says_so() -> None:
    quiet = Snapshot(TAKEN_NS, 0.0, FRESH_UNTIL_NS)

    told = text_of(page(quiet))

    assert "What is wrong|Nothing runs here:" in told
    assert "This node has none." in told


def test_names_from_outside_are_escaped() -> None:
    golden = golden_snapshot()
    engine = replace(
        golden.engines[0],
        engine=HOSTILE,
        model_name=HOSTILE,
        version=HOSTILE,
        kind=HOSTILE,
        up=False,
    )
    device = Device(HOSTILE, 0, HOSTILE, HOSTILE)
    worker = WorkerStatus(HOSTILE, "failed", 1, None)
    books = replace(golden.accounts[0], device=device)
    snapshot = replace(
        golden,
        engines=(replace(engine, devices=(HOSTILE,)),),
        devices=(device, *golden.devices),
        accounts=(books,),
        workers=(worker,),
    )
    html = Landing(HOSTILE, lambda: snapshot, AccountHistory(), lambda: TAKEN_NS).page(
        HOSTILE, HOSTILE
    )

    assert "<img" not in html
    assert "onerror" not in re.sub(r"&lt;img src=x onerror=alert\(1\)&gt;", "", html)
    assert text_of(html).count(HOSTILE) >= 8


def test_reasons_do_not_split_a_use() -> None:
    """Idle for two reasons is idle."""
    cells = {
        Cell(Role.DECODE, Use.IDLE, Reason.KV_WAIT): 3.0,
        Cell(Role.DECODE, Use.IDLE, Reason.HOST_GAP): 2.0,
    }
    books = replace(account({}, 5), slice_ns=slice_ns(cells))

    assert AccountHistory().last_minute(books)[1][Use.IDLE] == 5.0


@pytest.mark.parametrize(
    ("head", "state"), [("10.0.0.7:1", "follower of 10.0.0.7:1"), ("", "ready")]
)
def test_a_follower_shows_its_leader(head: str, state: str) -> None:
    golden = golden_snapshot()
    engines = tuple(
        replace(engine, follows=head) if engine.follows is not None else engine
        for engine in golden.engines
    )

    shown = page(replace(golden, engines=engines))

    assert state in shown
    assert ("follower of" in shown) == bool(head)


@pytest.mark.parametrize(
    ("links", "leads"),
    [
        (PageLinks(), "why: disagg-node diagnose (docs/diagnosis.md)</li>"),
        (
            PageLinks(planner="https://planner.example:9848"),
            'why: <a href="https://planner.example:9848/">the planner\'s page</a></li>',
        ),
        (
            PageLinks(prometheus="http://prom:9090"),
            '<li><a href="http://prom:9090/">Prometheus</a>: every series',
        ),
        (PageLinks(grafana="http://g/'x"), '<a href="http://g/&#x27;x/">Grafana</a>: dashboards'),
    ],
)
def test_the_page_links_to_other_pages(links: PageLinks, leads: str) -> None:
    page = Landing("n", lambda: None, AccountHistory(), lambda: 0, links).page("", "")

    assert leads in page


def test_a_given_up_worker_stays_listed_with_cause_and_last_lines() -> None:
    golden = golden_snapshot()
    failed = replace(GIVEN_UP, last_lines=("RuntimeError: <script>",))
    gone = replace(golden.engines[0], state=EngineState.GONE, up=None)
    snapshot = replace(golden, workers=(failed,), engines=(gone,))

    html = page(snapshot)

    told = text_of(html)
    assert (
        "Worker prefill-0 has crashed so often that it was given up: ended unasked by signal 9 "
        "(Killed), 5 times started again (for 90 s)." in told
    )
    assert "RuntimeError: &lt;script&gt;" in html
    assert "failed|for 90 s, 5 restarts" in told
    once = replace(golden_snapshot(), workers=(replace(failed, restarts=1),))
    assert "failed|for 90 s, 1 restart|" in text_of(page(once))


@pytest.mark.parametrize(("minutes", "told"), [(3, True), (61, False)])
def test_the_cause_of_a_crash_is_shown_for_an_hour_after_recovery(minutes: int, told: bool) -> None:
    since = NOW_SECONDS - 60 * minutes
    back = replace(GIVEN_UP, state="ready", restarts=1, since_timestamp_seconds=since)

    text = text_of(page(replace(golden_snapshot(), workers=(back,))))

    what = "Worker prefill-0 crashed and is ready again for 3 min: ended unasked by signal 9"
    assert (what in text) is told


def test_a_start_shows_its_duration_and_deadline() -> None:
    now = NOW_SECONDS
    starting = WorkerStatus(
        "prefill-0",
        "starting",
        0,
        now - 40,
        since_timestamp_seconds=now - 40,
        deadline_timestamp_seconds=now + 560,
        last_lines=("Loading weights: 45 %",),
    )

    told = text_of(page(replace(golden_snapshot(), workers=(starting,))))

    assert "Worker prefill-0 is starting (for 40 s, given up in 9 min)." in told
    assert "Loading weights: 45 %" in told


def test_pool_verdicts_match_the_dashboards() -> None:
    golden = golden_snapshot()
    engines = tuple(
        replace(golden.engines[0], engine=name, role=role, devices=(), state=EngineState.READY)
        for name, role in (("p", Role.PREFILL), ("d", Role.DECODE))
    )
    full = (EngineCapacity("p", 0.8), EngineCapacity("d", 0.3))

    told = text_of(page(replace(golden, engines=engines, capacities=full)))
    unknown = text_of(page(replace(golden, engines=engines, capacities=full[1:])))

    assert "Pools|prefill is short of GPUs|prefill|80% of capacity used" in told
    assert "what prefill can take is not learned yet" in unknown
    assert "prefill|capacity not learned yet" in unknown
