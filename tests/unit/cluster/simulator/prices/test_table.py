"""The text of price tables: what is parsed, and what is refused with all its problems."""

from __future__ import annotations

import pytest

from disagg_cluster.simulator.prices.table import PriceTable, PriceTableError, parse_table
from disagg_cluster.simulator.prices.table_text import read_text, render_table

HEAD = """\
# disagg step prices, version 1
# gpu: NVIDIA H100 80GB HBM3
# model: a model
# gpus: 1
# all_reduce: none
# source: made up for a test
# licence: none needed
"""
COLUMNS = "part,tokens,kv_tokens,requests,request_kv_tokens,experts,microseconds\n"
ROWS = """\
tokens,1,,,,,5000
tokens,1024,,,,,20000
context,16,0,,,,10
context,16,1024,,,,20
context,1024,0,,,,200
context,1024,1024,,,,500
decode,,,1,16,,5
decode,,,1,1024,,50
decode,,,64,16,,50
decode,,,64,1024,,900
"""
MIXED = "".join(
    f"mixed,{tokens},{kv},{requests},{read},,{micros}\n"
    for tokens, kv, requests, read, micros in (
        *((16, 0, 1, 16, 16), (16, 0, 1, 1024, 62), (16, 0, 64, 16, 70), (16, 0, 64, 1024, 1300)),
        *((16, 1024, 1, 16, 26), (16, 1024, 1, 1024, 72), (16, 1024, 64, 16, 80)),
        *((16, 1024, 64, 1024, 1310), (1024, 0, 1, 16, 210), (1024, 0, 1, 1024, 260)),
        *((1024, 0, 64, 16, 300), (1024, 0, 64, 1024, 1600), (1024, 1024, 1, 16, 520)),
        *((1024, 1024, 1, 1024, 570), (1024, 1024, 64, 16, 600), (1024, 1024, 64, 1024, 2000)),
    )
)
GOOD = HEAD + COLUMNS + ROWS


def parsed(text: str) -> PriceTable:
    return parse_table(text)


def problems(text: str) -> str:
    with pytest.raises(PriceTableError) as refused:
        parse_table(text)
    return str(refused.value)


def test_a_table_states_its_subject_and_source() -> None:
    table = parsed(GOOD)

    assert (table.gpu, table.model, table.gpus) == ("NVIDIA H100 80GB HBM3", "a model", 1)
    assert (table.source, table.licence) == ("made up for a test", "none needed")
    assert table.parts["tokens"].at(1) == 5000
    assert table.parts["decode"].at(64, 1024) == 900
    assert table.surcharge is None


def test_the_surcharge_of_mixed_batches_is_separate() -> None:
    surcharge = parsed(GOOD + MIXED).surcharge

    assert surcharge is not None
    assert surcharge.at(1024, 0, 64, 1024) == 1600 - 200 - 900
    assert surcharge.at(0, 0, 64, 1024) == surcharge.at(1024, 0, 0, 1024) == 0.0


def test_the_order_of_rows_and_of_columns_does_not_matter() -> None:
    turned = "\n".join(",".join(reversed(line.split(","))) for line in (COLUMNS + ROWS).split())
    backwards = HEAD + COLUMNS + "\n".join(reversed(ROWS.split()))

    for text in (HEAD + turned, backwards):
        assert parsed(text).parts["context"].at(500, 500) == pytest.approx(
            parsed(GOOD).parts["context"].at(500, 500)
        )


def test_a_rendered_table_is_read_back() -> None:
    head, values, wrong = read_text(GOOD + MIXED)

    assert wrong == []
    assert read_text(render_table(head, values)) == (head, values, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: a price table begins with"),
        (COLUMNS + ROWS, "line 1: a price table begins with"),
        (GOOD.replace("version 1", "version 2"), "line 1: a price table begins with"),
        (GOOD.replace("# licence: none needed\n", ""), "head: no '# licence: ...'"),
        (GOOD.replace("# gpus: 1", "# gpus: 0"), "head: gpus is '0', not a whole number"),
        (GOOD.replace("# gpus: 1", "# gpus: 9999999"), "head: gpus is '9999999'"),
        (GOOD.replace("# gpus: 1", "# gpus: two"), "head: gpus is 'two'"),
        (GOOD.replace("# gpus: 1", "# gpus: 2"), "2 GPUs, so all_reduce is included or excluded"),
        (GOOD.replace("reduce: none", "reduce: maybe"), "none, included or excluded"),
        (HEAD, "no column part, tokens"),
        (GOOD.replace(",microseconds", ",seconds"), "no column microseconds"),
        (HEAD + COLUMNS, "no rows of part 'tokens'; no rows of part 'context'"),
        (GOOD + "tokens,512,,,,,-3\n", "line 19: microseconds is -3, not a number above 0"),
        (GOOD + "tokens,512,,,,,0\n", "line 19: microseconds is 0, not a number above 0"),
        (GOOD + "tokens,512,,,,,nan\n", "line 19: microseconds is nan"),
        (GOOD + "tokens,512,,,,,1e999\n", "line 19: microseconds is 1e999"),
        (GOOD + "tokens,-1,,,,,3\n", "line 19: tokens is -1, not a number from 0 up"),
        (GOOD + "tokens,,,,,,3\n", "line 19: tokens is '', not a number"),
        (GOOD + "tokens,512\n", "line 19: 2 cells under 7 columns"),
        (GOOD + "tokens,512,,,,,9000,9\n", "line 19: 8 cells under 7 columns"),
        (GOOD + "tokens,512,,,,,\n", "line 19: microseconds is '', not a number"),
        (GOOD + "prefill,512,,,,,3\n", "line 19: part is 'prefill', not one of tokens,"),
        (GOOD + "tokens,1024,,,,,3\n", "line 19: tokens at (1024.0,) a second time"),
        (GOOD + "context,64,0,,,,30\n", "context: no value at (64.0, 1024.0)"),
        (GOOD.replace("tokens,1024,,,,,20000\n", ""), "tokens: tokens is 1 in all rows"),
        (GOOD.replace(",20000\n", ",2000\n"), "tokens: 2000 us at (1024.0,) are less than half"),
        (GOOD + "mixed,16,0,1,16,,16\n", "mixed: tokens is 16 in all rows"),
    ],
)
def test_each_problem_is_reported(text: str, said: str) -> None:
    assert said in problems(text)


def test_all_problems_are_reported_at_once() -> None:
    told = problems(GOOD + "tokens,512,,,,,-3\nprefill,1,,,,,1\ncontext,x,0,,,,1\n")

    assert all(f"line {line}: " in told for line in (19, 20, 21))


def test_a_small_decrease_is_accepted() -> None:
    """Kernels change with the size: lm_head of one request takes longer than of two."""
    assert parsed(GOOD + "tokens,512,,,,,21000\n").parts["tokens"].at(512) == 21000
