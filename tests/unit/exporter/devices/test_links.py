from disagg_exporter.devices.links import LONGEST_NS, LinkBytes
from disagg_exporter.model import SECOND_NS, Direction, LinkKind, LinkTraffic

SENT = (LinkKind.PCIE, Direction.SENT)


def test_a_rate_counts_for_the_time_since_the_previous_call() -> None:
    links = LinkBytes()

    assert links.add([(SENT, 100.0)], SECOND_NS) == (LinkTraffic(*SENT, 0.0),)
    assert links.add([(SENT, 100.0)], 3 * SECOND_NS) == (LinkTraffic(*SENT, 200.0),)


def test_an_unreported_rate_changes_nothing() -> None:
    links = LinkBytes()

    assert links.add([(SENT, None)], 0) == ()
    links.add([(SENT, 100.0)], SECOND_NS)
    assert links.add([(SENT, None)], 2 * SECOND_NS) == (LinkTraffic(*SENT, 100.0),)


def test_a_rate_covers_a_bounded_time() -> None:
    links = LinkBytes()
    links.add([], 0)

    [traffic] = links.add([(SENT, 1.0)], 100 * LONGEST_NS)
    assert traffic.bytes == LONGEST_NS / SECOND_NS
