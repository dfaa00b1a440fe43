from __future__ import annotations

import pytest

from disagg_exporter.attribution.cost_model.fit import Form, Lines, SampleBin, Table, best
from disagg_exporter.attribution.cost_model.samples import StepWork

FORMS = [Form(requests=r, experts=e) for r in (False, True) for e in (False, True)]


def _works() -> list[StepWork]:
    pure = [StepWork(0, 0, n, n * 30 * k) for n in range(1, 60, 6) for k in (5, 11, 20)]
    mixed = [
        StepWork(p, p * p / 2 + p * c, n, n * 300)
        for p in range(20, 2000, 90)
        for c in (0, 700)
        for n in (5, 40)
    ]
    return pure + mixed


def _cells(truth: Lines) -> list[SampleBin]:
    return [(10.0, work, truth.price(work)) for work in _works()]


def _learned(truth: Lines) -> Lines:
    known, table = None, Table.of(_cells(truth), FORMS[-1])
    for turn in range(24):
        known = best(table, FORMS, known, noise_ratio=0.1, turn=turn)
    assert known is not None
    return known


def test_both_lines_are_fitted_when_both_were_observed() -> None:
    truth = Lines(Form(), (0.0004, 2.5e-5, 1e-9), (0.006, 1e-8, 5e-8))

    found = _learned(truth)

    assert found.form == truth.form
    assert found.computing == pytest.approx(truth.computing, rel=0.05)
    assert found.reading == pytest.approx(truth.reading, rel=0.05, abs=1e-9)


def test_prices_are_fitted_when_only_one_line_ever_dominated() -> None:
    truth = Lines(Form(), (0.0, 1e-9, 0.0), (0.006, 1e-6, 5e-8))

    found = _learned(truth)

    assert [found.price(work) for work in _works()] == pytest.approx(
        [truth.price(work) for work in _works()], rel=0.001
    )


def test_steps_that_seem_to_take_no_time_do_not_decide_the_fit() -> None:
    """Records that came at once: a handful of steps of rare work, of a tenth of a millisecond."""
    truth = Lines(Form(), (0.0004, 2.5e-5, 1e-9), (0.006, 1e-8, 5e-8))
    cells, known = _cells(truth), None
    none_long = [(1.0, StepWork(0, 0, n, n * 4000), 1e-4) for n in (3, 9, 33, 57)]

    for turn in range(24):
        known = best(
            Table.of([*cells, *none_long] if turn > 5 else cells, FORMS[-1], known),
            FORMS,
            known,
            noise_ratio=0.1,
            turn=turn,
        )

    assert known is not None
    assert [known.price(work) for work in _works()] == pytest.approx(
        [truth.price(work) for work in _works()], rel=0.15
    )


@pytest.mark.parametrize(
    "truth",
    [
        Lines(Form(experts=True), (0.0, 1e-9, 0.0), (0.002, 1e-6, 2e-8, 0.0, 0.006, 0.004)),
        Lines(Form(requests=True), (0.02, 1e-4, 1e-9, 4e-4), (0.0, 0.0, 0.0, 0.0)),
    ],
    ids=["experts", "requests"],
)
def test_optional_terms_are_added_only_where_they_improve_the_fit(truth: Lines) -> None:
    found = _learned(truth)

    assert (found.form.experts, found.form.requests) == (truth.form.experts, truth.form.requests)
    assert [found.price(work) for work in _works()] == pytest.approx(
        [truth.price(work) for work in _works()], rel=0.02
    )
