import subprocess
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.prometheus
@pytest.mark.parametrize("file", ["golden_page.prom", "golden_page_stale.prom"])
def test_promtool_accepts_the_metrics_page_without_warnings(file: str) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=(DATA / file).read_bytes(),
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
