from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from disagg_cluster.cli.main import main
from support.pictures import texts_of

DAY_MINUTES = 1440
START = 1_700_000_000 // 60 * 60


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(each) for each in args], prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def write_load(path: Path, minutes: int) -> Path:
    """A load with a day in it, whose outputs get longer; a minute of it is missing."""
    rng = np.random.default_rng(3)
    rows = ["t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s"]
    for minute in range(minutes):
        if minute == 17:
            continue
        level = 4 + 2 * np.sin(2 * np.pi * minute / DAY_MINUTES) + rng.normal(0, 0.1)
        output = level * (100 + minute / 10)
        rows.append(f"{START + 60 * minute},{level:.3f},{level * 800:.1f},{output:.1f}")
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_load(tmp_path_factory.mktemp("load") / "load.csv", 3 * DAY_MINUTES)


def test_the_table_has_a_line_for_each_phase_and_horizon(load: Path) -> None:
    code, out, err = run("forecast", "--csv", load)

    assert (code, err) == (0, "")
    for phase in ("prefill", "decode"):
        for horizon in ("5m", "15m", "1h", "6h", "24h"):
            assert re.search(
                rf"^{phase} +{horizon} +\d{{4}}-\d\d-\d\d \d\d:\d\d( +[\d,.]+){{4}}$",
                out,
                re.MULTILINE,
            )
    assert "prefill has " in out
    assert "output tokens a request: " in out


def test_json_has_times_with_a_zone_units_in_names_and_rising_quantiles(load: Path) -> None:
    code, out, _ = run("forecast", "--csv", load, "--json", "--horizons", "1h,5m")
    whole = json.loads(out)
    decode = whole["models"][0]["phases"]["decode"]

    assert code == 0
    assert whole["quantiles"] == [0.05, 0.5, 0.9, 0.95]
    assert [each["horizon_seconds"] for each in decode["horizons"]] == [300, 3600]
    for each in decode["horizons"]:
        ahead = datetime.fromisoformat(each["time"]).timestamp() - (START + 60 * 3 * DAY_MINUTES)
        assert ahead == each["horizon_seconds"] - 60
        assert list(each["tokens_per_second"]) == ["0.05", "0.5", "0.9", "0.95"]
        values = list(each["tokens_per_second"].values())
        assert values == sorted(values)
    assert decode["observations"] == 3 * DAY_MINUTES - 1
    assert datetime.fromisoformat(whole["made_at"]).tzinfo is not None


def test_only_horizons_too_long_for_the_history_are_undecided(
    tmp_path: Path,
) -> None:
    short = write_load(tmp_path / "short.csv", 200)

    code, out, _ = run("forecast", "--csv", short, "--json")

    assert code == 0
    horizons = json.loads(out)["models"][0]["phases"]["prefill"]["horizons"]
    assert [("undecided" in each) for each in horizons] == [False, False, False, True, True]
    assert "2 times the horizon" in horizons[-1]["undecided"]
    assert "decode   6h       undecided: 200 steps" in run("forecast", "--csv", short)[1]


@pytest.mark.parametrize("rows", [1, 3, 19])
def test_a_forecast_of_too_few_steps_is_undecided(rows: int, tmp_path: Path) -> None:
    path = write_load(tmp_path / "few.csv", rows + 1)
    if rows == 1:
        path.write_text("\n".join(path.read_text().splitlines()[:2]) + "\n")
        code, _, err = run("forecast", "--csv", path)
        assert (code, "one time only" in err) == (2, True)
        return
    whole = json.loads(run("forecast", "--csv", path, "--json")[1])
    for phase in whole["models"][0]["phases"].values():
        assert all("undecided" in each for each in phase["horizons"])
    assert "undecided" in whole["models"][0]["trend"]


def test_steps_longer_than_a_horizon_leave_it_undecided(tmp_path: Path) -> None:
    path = tmp_path / "hours.csv"
    rows = [f"{3600 * hour},{1 + hour % 24},{100 * (1 + hour % 24)}" for hour in range(24 * 14)]
    path.write_text("\n".join(["t_s,prompt_tokens_per_s,output_tokens_per_s", *rows]))

    whole = json.loads(run("forecast", "--csv", path, "--json")[1])

    horizons = whole["models"][0]["phases"]["prefill"]["horizons"]
    assert [("undecided" in each) for each in horizons] == [True, True, False, False, False]
    assert "steps of 3600 s" in horizons[0]["undecided"]


def test_a_request_log_is_accepted_as_load(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    lines = [
        {"timestamp": 1000 * second, "input_length": 500, "output_length": 50}
        for second in range(0, 7200, 2)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))

    code, out, _ = run("forecast", "--requests", path, "--horizons", "5m", "--json")

    assert code == 0
    (horizon,) = json.loads(out)["models"][0]["phases"]["prefill"]["horizons"]
    assert horizon["tokens_per_second"]["0.5"] == pytest.approx(250, rel=0.02)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_is_drawn_beside_the_table(ending: str, load: Path, tmp_path: Path) -> None:
    path = tmp_path / f"load.{ending}"

    code, out, err = run("forecast", "--csv", load, "--horizons", "1h", "--plot", path)

    assert (code, err) == (0, f"{path}\n")
    assert out.startswith("all requests\n")
    if ending == "png":
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    texts = texts_of(path)
    for phase in ("prefill", "decode"):
        assert texts.count(f"{phase}: all requests") == 1
    for series in ("load", "median", "5 to 95 %", "50 to 90 %", "tokens/s"):
        assert texts.count(series) == 2


@pytest.mark.parametrize("horizons", ["1h,30d", "30d"])
def test_a_picture_of_a_back_test_shows_decided_horizons_or_why_there_is_none(
    horizons: str, load: Path, tmp_path: Path
) -> None:
    path = tmp_path / "errors.svg"
    wanted = ("--horizons", horizons, "--moments", "4")

    code, out, err = run("backtest", "--csv", load, *wanted, "--plot", path)

    assert (code, err) == (0, f"{path}\n")
    assert "undecided" in out
    texts = texts_of(path)
    for phase in ("prefill", "decode"):
        assert texts.count(f"{phase}: all requests") == 1
    for series in ("1h", "error", "last value's error", "out of the band"):
        assert texts.count(series) == (2 if "1h" in horizons else 0)
    notes = [text for text in texts if text.startswith("undecided: ")]
    assert len(notes) == (0 if "1h" in horizons else 2)


def test_a_missing_matplotlib_is_reported_before_any_input_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    code, out, err = run("forecast", "--csv", "/nowhere.csv", "--plot", tmp_path / "load.svg")

    assert (code, out) == (1, "")
    assert "pip install 'disagg-node[plot]'" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--csv", "a", "--requests", "b"), "give one of"),
        (("--csv", "a", "--since", "7d"), "--since is for --prometheus"),
        (("--csv", "a", "--step", "60s"), "--step is not for --csv"),
        (("--csv", "/nowhere.csv"), "/nowhere.csv"),
        (("--horizons", "soon"), "is no length of time"),
        (("--horizons", "0m"), "is no length of time"),
        (("--since", "soon"), "is no span of time"),
        (("--prometheus", "prometheus:9090"), "is no address"),
        (("--prometheus", "http://"), "is no address"),
        (("--prometheus", "http://["), "is no address"),
        (("--prometheus", "http://prometheus:99999"), "is no address"),
        (("--prometheus", "http://my prometheus"), "is no address"),
        (("--prometheus", "http://a:b@prometheus:9090"), "belong in the --http-config file"),
        (("--header", "nothing"), "is no header"),
    ],
)
@pytest.mark.parametrize("command", ["forecast", "backtest"])
def test_a_wrong_command_line_is_bad_usage(command: str, args: tuple[str, ...], words: str) -> None:
    code, out, err = run(command, *args)

    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("plot", "words"), [("load.pdf", ".svg or a .png"), ("/nowhere/load.svg", "is no folder")]
)
def test_a_picture_that_cannot_be_drawn_is_bad_usage(plot: str, words: str) -> None:
    code, out, err = run("forecast", "--plot", plot)

    assert (code, out) == (2, "")
    assert words in err


def test_an_unwritable_picture_is_reported_before_any_input_is_read(tmp_path: Path) -> None:
    picture = tmp_path / "load.svg"
    picture.symlink_to(tmp_path / "nowhere" / "load.svg")

    code, out, err = run("forecast", "--csv", "/nowhere.csv", "--plot", picture)

    assert (code, out) == (1, "")
    assert err == f"disagg-node: cannot write {picture}: No such file or directory\n"


def test_a_failed_command_leaves_an_existing_picture_unchanged(tmp_path: Path) -> None:
    old, new = tmp_path / "old.svg", tmp_path / "new.svg"
    old.write_text("theirs")

    for picture in (old, new):
        assert run("forecast", "--csv", "/nowhere.csv", "--plot", picture)[0] == 2

    assert old.read_text() == "theirs"
    assert not new.exists()


def test_a_prometheus_that_does_not_answer_is_a_failure_that_names_it() -> None:
    code, out, err = run("forecast", "--prometheus", "http://127.0.0.1:9")

    assert (code, out) == (1, "")
    assert "no answer from http://127.0.0.1:9" in err
    assert "--prometheus says where it is" in err


def test_progress_is_shown_on_a_terminal_and_cleared_at_the_end(load: Path) -> None:
    command = (sys.executable, "-m", "disagg_cluster.cli", "backtest", "--csv", str(load))
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*command, "--moments", "4", "--horizons", "5m", "--json"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            check=True,
            timeout=120,
        )
        os.close(theirs)
        told = os.read(ours, 65536).decode()
    finally:
        os.close(ours)

    assert "all requests, prefill: 0 of 4" in told
    assert told.endswith("\r\x1b[K")
    assert json.loads(done.stdout)["models"]


def test_a_back_test_reports_errors_beside_those_of_the_last_value(load: Path) -> None:
    code, out, err = run("backtest", "--csv", load, "--moments", "6", "--horizons", "5m,6h,24h")

    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines() if line.startswith("prefill")]
    assert [line[1] for line in lines] == ["5m", "6h", "24h"]
    # On a smooth day, the last value is further off six hours ahead.
    assert float(lines[1][3].rstrip("%")) < float(lines[1][4].rstrip("%"))
    assert lines[2][2] == "undecided:"


def test_a_picture_shows_no_load_where_there_is_none(tmp_path: Path) -> None:
    """The bands of an idle model are of some 1e-100 tokens, which would fill the whole plot."""
    path, log = tmp_path / "load.svg", tmp_path / "idle.csv"
    rows = [f"{START + 60 * minute},0,0,0" for minute in range(120)]
    head = "t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s"
    log.write_text("\n".join([head, *rows]))

    assert run("forecast", "--csv", log, "--horizons", "15m", "--plot", path)[0] == 0

    # Both axes end at a whole token.
    assert texts_of(path).count("1") == 2
