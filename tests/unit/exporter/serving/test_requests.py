import pytest

from disagg_exporter.model import (
    SECOND_NS,
    EngineStatus,
    FrontCounts,
    Histogram,
    Part,
    RequestAccount,
    RequestSource,
    Role,
    ServingCounts,
    Total,
)
from disagg_exporter.serving.requests import KEPT_MODELS, ModelRequests
from support.served import engine_status


def waits(count: float) -> Histogram:
    """So many waits of half a second."""
    return Histogram((0.25, 1.0), (0.0, count, count), count / 2)


def serving(count: float, **more: float) -> ServingCounts:
    """So many requests, each reported completely."""
    totals = {
        Total.ARRIVED_REQUESTS: count,
        Total.ENDED_STOP: count,
        Total.ENDED_ERROR: count / 10,
        Total.REJECTED_FOR_REQUESTS: count / 5,
        Total.CACHED_PROMPT_TOKENS: count * 100,
    }
    each = waits(count)
    return ServingCounts(totals | {Total(name): value for name, value in more.items()}, *[each] * 5)


def counted(*looks: list[EngineStatus], fronts: tuple[FrontCounts, ...] = ()) -> ModelRequests:
    """The counts after one call per second."""
    counts = ModelRequests()
    for number, look in enumerate(looks):
        counts.ingest(look, fronts, number * SECOND_NS)
    return counts


def told(counts: ModelRequests, source: RequestSource) -> RequestAccount:
    return next(each for each in counts.accounts().requests if each.source is source)


def test_a_request_is_counted_once_where_it_enters_and_where_it_ends() -> None:
    pair = [
        engine_status("p", Role.PREFILL, serving(100)),
        engine_status("d", Role.DECODE, serving(90)),
    ]

    account = told(counted(pair), RequestSource.ENGINE)

    assert account.arrivals == 100
    assert account.ends == {"stop": 90, "error": 9 + 10}
    assert account.rejections == {
        (Role.PREFILL, "queued_requests"): 20,
        (Role.DECODE, "queued_requests"): 18,
    }
    assert account.prompt_tokens == waits(90)
    assert account.output_tokens == waits(90)
    # Neither engine observes a user's whole wait.
    assert account.time_to_first_token is None
    assert account.duration is None


def test_a_mixed_engine_reports_the_whole_latency() -> None:
    account = told(counted([engine_status("m", Role.MIXED, serving(7))]), RequestSource.ENGINE)

    assert account.arrivals == 7
    assert account.time_to_first_token == waits(7)
    assert account.duration == waits(7)


def test_a_decode_engine_with_immediate_requests_reports_the_whole_wait() -> None:
    pair = [
        engine_status("p", Role.PREFILL, serving(5), kind="sglang"),
        engine_status("d", Role.DECODE, serving(4), kind="sglang"),
    ]
    counts = counted(pair)

    account = told(counts, RequestSource.ENGINE)
    assert (account.arrivals, account.time_to_first_token) == (5, waits(4))
    assert counts.accounts().parts == ()
    assert {each.source for each in counts.accounts().requests} == {RequestSource.ENGINE}


def test_pools_are_combined_from_both_parts() -> None:
    pair = [
        engine_status("p", Role.PREFILL, serving(5)),
        engine_status("d", Role.DECODE, serving(4)),
    ]
    counts = counted(pair)

    account = told(counts, RequestSource.POOLS)
    assert account.time_to_first_token is not None
    assert account.time_to_first_token.total == 4
    assert account.time_to_first_token.sum == pytest.approx(4 * (0.5 + 0.5))
    parts = {each.part: each.seconds.total for each in counts.accounts().parts}
    assert parts == {Part.PREFILL: 5, Part.FIRST_DECODE: 4, Part.DECODE: 4}


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_one_pool_alone_does_not_give_the_whole_latency(role: Role) -> None:
    """The other is on other nodes; here is its part, for rules to combine."""
    counts = counted([engine_status("e", role, serving(5))])

    assert {each.source for each in counts.accounts().requests} == {RequestSource.ENGINE}
    assert counts.accounts().parts


def test_counts_survive_engines_that_leave_or_restart() -> None:
    first = engine_status("m", Role.MIXED, serving(10))
    other = engine_status("n", Role.MIXED, serving(3))
    again = engine_status("m", Role.MIXED, serving(2))

    assert told(counted([first], [other]), RequestSource.ENGINE).arrivals == 13
    assert told(counted([first], [first, other], [again]), RequestSource.ENGINE).arrivals == 15


def test_an_engine_of_unknown_role_is_left_out() -> None:
    """It may be half of a pair whose other half is counted."""
    assert not counted([engine_status("e", Role.UNKNOWN, serving(10))]).accounts().requests


def test_unreported_values_are_absent() -> None:
    account = told(
        counted([engine_status("m", Role.MIXED, ServingCounts({Total.FINISHED_REQUESTS: 3.0}))]),
        RequestSource.ENGINE,
    )

    assert account == RequestAccount(RequestSource.ENGINE, "m", "")


def test_an_engine_whose_model_is_not_known_yet_makes_no_empty_series() -> None:
    nameless = engine_status("e", Role.MIXED, serving(0), model="")

    assert not counted([nameless]).accounts().requests
    assert counted([engine_status("e", Role.MIXED, serving(1), model="")]).accounts().requests


def test_a_frontend_is_a_separate_source_by_model() -> None:
    front = FrontCounts(RequestSource.FRONTEND, "f", {"a": serving(3), "b": serving(4)})

    accounts = counted([], fronts=(front,)).accounts().requests

    assert {(each.model_name, each.arrivals) for each in accounts} == {("a", 3), ("b", 4)}
    assert {each.source for each in accounts} == {RequestSource.FRONTEND}


def test_an_unread_frontend_is_no_source_until_read_again() -> None:
    """What users experience there is unknown: frozen counts would hide current ones."""
    counts, engine = ModelRequests(), engine_status("m", Role.MIXED, serving(9))
    shown = []
    for number, (told, is_stale) in enumerate([(3, False), (3, True), (7, False)]):
        by_model = {"m": serving(told)}
        front = FrontCounts(RequestSource.FRONTEND, "f", by_model, is_stale=is_stale)
        counts.ingest([engine], [front], number * SECOND_NS)
        shown.append({each.source: each.arrivals for each in counts.accounts().requests})

    engines = {RequestSource.ENGINE: 9}
    assert shown == [
        {**engines, RequestSource.FRONTEND: 3},
        engines,
        {**engines, RequestSource.FRONTEND: 7},
    ]


def test_models_beyond_the_limit_are_counted_as_left_out() -> None:
    names = [f"model-{number}" for number in range(KEPT_MODELS + 3)]
    front = FrontCounts(
        RequestSource.FRONTEND, "f", {name: serving(1) for name in names}, left_out_models=5
    )
    counts = counted([], [], fronts=(front,))

    known = counts.accounts()
    assert [each.model_name for each in known.requests] == names[:KEPT_MODELS]
    assert known.left_out_models == 3 + 5


def test_a_left_out_model_is_counted_once_there_is_room() -> None:
    def front(told: float, *names: str) -> FrontCounts:
        return FrontCounts(RequestSource.FRONTEND, "f", {name: serving(told) for name in names})

    many = [f"model-{number}" for number in range(KEPT_MODELS)]
    counts = ModelRequests()
    for second, look in enumerate(
        [front(1, *many, "late"), front(5, "late"), front(7, "late"), front(10, "late")]
    ):
        counts.ingest([], [look], second * SECOND_NS)

    arrivals = {each.model_name: each.arrivals for each in counts.accounts().requests}
    assert arrivals["late"] == 5
    assert counts.accounts().left_out_models == 0


def test_unserved_models_are_forgotten_once_there_are_many() -> None:
    counts = ModelRequests()
    for number in range(KEPT_MODELS + 3):
        engine = engine_status("m", Role.MIXED, serving(number + 1), model=f"model-{number}")
        counts.ingest([engine], (), number * SECOND_NS)

    names = {each.model_name for each in counts.accounts().requests}
    assert len(names) == KEPT_MODELS
    assert {"model-0", "model-1", "model-2"}.isdisjoint(names)


def test_waiting_requests_of_frontends_are_summed() -> None:
    """One that does not report it adds nothing, nor does one that is not read any more."""

    def front(name: str, waiting: dict[str, float], **more: bool) -> FrontCounts:
        by_model = {"llama": serving(1)}
        return FrontCounts(RequestSource.FRONTEND, name, by_model, waiting=waiting, **more)  # type: ignore[arg-type]

    told_by_two = (front("a", {"llama": 3.0}), front("b", {"llama": 4.0}), front("c", {}))
    counts = ModelRequests()
    seen = []
    for number, fronts in enumerate(
        (told_by_two, told_by_two[1:], told_by_two[2:], (front("a", {"llama": 5.0}),))
    ):
        counts.ingest([], fronts, number * SECOND_NS)
        seen.append(told(counts, RequestSource.FRONTEND).waiting)
    counts.ingest([], (front("a", {"llama": 5.0}, is_stale=True),), 9 * SECOND_NS)

    assert seen == [7.0, 4.0, None, 5.0]
    assert counts.accounts().requests == ()
