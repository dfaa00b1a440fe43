import pytest

from disagg_exporter.accounting.intervals.timeline import WorkShares

MORE_THAN_A_FLOAT_COUNTS = 2**60 - 1


@pytest.mark.parametrize(
    ("shares", "parts"),
    [
        (WorkShares(1.0), (MORE_THAN_A_FLOAT_COUNTS, 0, 0)),
        (WorkShares(0.0), (0, MORE_THAN_A_FLOAT_COUNTS, 0)),
        (WorkShares(0.0, dummy_share=1.0), (0, 0, MORE_THAN_A_FLOAT_COUNTS)),
    ],
)
def test_parts_of_a_length_beyond_float_precision_are_not_negative(
    shares: WorkShares, parts: tuple[int, int, int]
) -> None:
    """A hostile engine may claim as much; a negative part would make a counter fall."""
    assert shares.divide(MORE_THAN_A_FLOAT_COUNTS) == parts
