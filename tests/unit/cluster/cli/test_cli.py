from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from disagg_cluster.cli.installing.install import PARTS
from disagg_cluster.cli.main import LazyGroup, main
from disagg_cluster.cli.prometheus_access import DEFAULT_URL
from disagg_cluster.deploy.install.files import InstallPart
from disagg_cluster.nodefile.shape import node_file_schema
from disagg_cluster.planner.settings.planner_file import PlannerConfig
from disagg_exporter import __version__
from disagg_exporter.errors import DisaggError

DATA = Path(__file__).parents[3] / "data" / "nodefiles"
# Only wrong on a machine that lacks what they name.
RIGHT_ELSEWHERE = ("invalid-model-missing", "invalid-python-missing")
ELSEWHERE = "valid on a node that has these; --elsewhere shows what it would do there\n"
INVALID = sorted(path.stem for path in DATA.glob("invalid-*.yaml"))


def run(*args: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    result = CliRunner().invoke(main, args, prog_name="disagg-node")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def engines_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every interpreter has its engine, unless a test says otherwise."""
    monkeypatch.setattr("disagg_cluster.nodefile.reading._lacks", lambda *_: False)


HELP = """\
Usage: disagg-node [OPTIONS] COMMAND [ARGS]...

  GPU-seconds of LLM inference by phase: launch, watch and measure the prefill
  and decode workers of this node.

Options:
  -V, --version  Show the version and exit.
  -h, --help     Show this message and exit.

Commands:
  start           Launch a node file's workers, or find running engines.
  stop            Stop a daemon, or the workers left behind by one.
  status          Show the state of a daemon and its workers.
  logs            Show what a worker prints.
  reload          Apply a changed node file.
  pause           Only observe workers: kill and start nothing.
  resume          Supervise paused workers again.
  restart         Drain a worker and start it again, also a failed one.
  reassign        Move a worker's GPUs to the other phase.
  drain           Send a worker no new requests until it is resumed.
  explain         Explain why a worker is in its state.
  top             Show live how GPU time is split, and what is wrong.
  phases          Show the engine, role and phases of each GPU.
  doctor          Check what is missing, and how good the numbers are.
  demo            Run a simulated node; needs no GPU.
  config          Check a node file without starting it.
  dashboards      Write our Grafana dashboards.
  install         Install on a machine without Kubernetes.
  uninstall       Remove what install has written.
  init            Write a first node file for this machine.
  container-init  Run as the first process of a container.
  plugin          The plugin with which engines report their steps.
  roles           Explain how the roles of engines are detected.
  rules           Recording rules and alerts for Prometheus.
  report          Report how a cluster's GPU time was used.
  forecast        Forecast the load of prefill and decode.
  backtest        Measure how good past forecasts would have been.
  plan            Plan how many GPUs each phase needs, when and why.
  whatif          Plan for another load, other GPUs or targets.
  separation      Say whether separating prefill and decode would pay.
  rebalance       Say which engine should change its role, and why.
  tune            Probe an engine for its best limits.
  compare         Compare two spans of time at equal load.
  diagnose        Name the engine that delays first tokens, and why.
  planner         Forecast for a whole cluster, as a service.
  completion      Print the completion script of a shell.

  Exit codes: 0 done, 1 failed, 2 bad input or usage; of requests to a daemon
  also 3 refused, 4 no daemon answers, 5 not done in time; of a daemon also 6 a
  worker could not be ended; 130 interrupted.
"""


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_shows_every_command(option: str) -> None:
    assert run(option) == (0, HELP, "")


def test_start_with_a_positional_node_file_names_the_config_option() -> None:
    code, out, err = run("start", "node.yaml")

    assert (code, out) == (2, "")
    assert "unexpected argument 'node.yaml'; --config names the node file" in err


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_that_of_the_package(option: str) -> None:
    assert run(option) == (0, f"disagg-node, version {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("strat",), "no command 'strat'; did you mean start?"),
        (("config", "chekc"), "no command 'chekc'; did you mean check?"),
        (("frobnicate",), "No such command 'frobnicate'."),
    ],
)
def test_an_unknown_command_is_bad_usage(arguments: tuple[str, ...], said: str) -> None:
    groups = " ".join(("disagg-node", *arguments[:-1]))

    assert run(*arguments) == (
        2,
        "",
        f"Usage: {groups} [OPTIONS] COMMAND [ARGS]...\n"
        f"Try '{groups} --help' for help.\n\n"
        f"Error: {said}\n",
    )


def all_rows(group: LazyGroup = main) -> list[tuple[LazyGroup, str]]:
    """Every command of the table with its group, groups within groups too."""
    rows = []
    for name in group.list_commands(click.Context(group)):
        rows.append((group, name))
        command = group.get_command(click.Context(group), name)
        if isinstance(command, LazyGroup):
            rows += all_rows(command)
    return rows


@pytest.mark.parametrize(
    ("group", "name"), all_rows(), ids=lambda value: getattr(value, "name", value)
)
def test_every_listed_command_exists_under_its_name(group: LazyGroup, name: str) -> None:
    command = group.get_command(click.Context(group), name)

    assert command is not None
    assert command.name == name
    above = [group.name or ""] if group is not main else []
    code, text, _ = run(*above, name, "--help")
    assert code == 0
    assert "\\b" not in text, "what keeps click from joining lines is a character, not two"


def in_a_fresh_interpreter(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_the_help_imports_no_command_and_nothing_heavy() -> None:
    loaded = in_a_fresh_interpreter(
        "import contextlib, io, sys\n"
        "from disagg_cluster.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['--help'], standalone_mode=False)\n"
        "print(*sys.modules)\n"
    ).split()

    assert "disagg_cluster.cli.main" in loaded
    ours = {name for name in loaded if name.startswith("disagg_")}
    assert ours == {
        *("disagg_cluster", "disagg_cluster.cli", "disagg_cluster.cli.main"),
        *("disagg_exporter", "disagg_exporter.errors"),
    }
    heavy = {"pydantic", "yaml", "asyncio", "pynvml", "prometheus_client", "requests", "urllib3"}
    assert not heavy & set(loaded)
    # What it costs beyond click, which takes two thirds of the 0.1 s of CPU.
    clicks = in_a_fresh_interpreter("import sys, click\nprint(*sys.modules)").split()
    assert len(set(loaded) - ours - set(clicks)) < 40


def test_help_and_completion_load_no_heavy_modules() -> None:
    """Each costs a tenth of a second of CPU or more, and completion must be fast."""
    loaded = in_a_fresh_interpreter(
        "import contextlib, io, sys\n"
        "import click\n"
        "from disagg_cluster.cli.main import LazyGroup, main\n"
        "def walk(group, *above):\n"
        "    for name in group.list_commands(click.Context(group)):\n"
        "        main([*above, name, '--help'], standalone_mode=False)\n"
        "        command = group.get_command(click.Context(group), name)\n"
        "        if isinstance(command, LazyGroup):\n"
        "            walk(command, *above, name)\n"
        "        else:\n"
        "            for param in command.params:\n"
        "                param.shell_complete(click.Context(command), '')\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    walk(main)\n"
        "print(*sys.modules)\n"
    ).split()

    assert "disagg_cluster.cli.planning.plan" in loaded
    heavy = {"pydantic", "yaml", "asyncio", "pynvml", "prometheus_client", "numpy", "requests"}
    assert not (heavy | {"urllib3", "ssl"}) & set(loaded)


def test_an_expected_error_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command
    def fail() -> None:
        raise DisaggError("the GPU fell off the bus; look at dmesg")

    monkeypatch.setattr(main, "get_command", lambda ctx, name: fail)

    assert run("fail") == (1, "", "disagg-node: the GPU fell off the bus; look at dmesg\n")


def test_an_error_that_quotes_a_server_does_not_command_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command
    def fail() -> None:
        raise DisaggError("it refuses: \x1b[2Jbad_data\n    ask again")

    monkeypatch.setattr(main, "get_command", lambda ctx, name: fail)

    told = "disagg-node: it refuses: \\x1b[2Jbad_data\n    ask again\n"
    assert run("fail") == (1, "", told)


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(
    "command",
    [
        "report --gpu-hour-price",
        "top --once --interval",
        "demo --seconds",
        "restart w --timeout",
        "drain w --timeout",
        "reassign w --role decode --deadline",
        "separation -c planner.yaml --load",
    ],
)
def test_what_is_no_finite_number_is_bad_usage(command: str, value: str) -> None:
    """No comparison finds NaN outside of a range, and JSON has neither."""
    code, _, err = run(*command.split(), value)

    assert code == 2
    assert f"{value} is not " in err


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-"])
def test_a_command_runs_with_a_closed_standard_stream(closed: str, tmp_path: Path) -> None:
    rows = ["t_s,requests_per_s,prompt_tokens_per_s,output_tokens_per_s"]
    rows += [f"{60 * minute},4,3200,800" for minute in range(5)]
    (tmp_path / "load.csv").write_text("\n".join(rows))
    command = f"{sys.executable} -m disagg_cluster.cli forecast --csv load.csv --horizons 5m"

    done = subprocess.run(["sh", "-c", f"exec {command} {closed}"], cwd=tmp_path, check=False)

    assert done.returncode == 0


@pytest.mark.parametrize("command", ["config schema", "plugin env", "completion bash"])
def test_output_to_a_full_disk_is_one_line_without_a_traceback(command: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "disagg_cluster.cli", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.endswith(": cannot write: No space left on device")


def test_ctrl_c_ends_a_command_with_exit_code_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command
    def wait() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "get_command", lambda ctx, name: wait)

    assert run("fail") == (130, "", "\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--prometheus", "ftp://admin:hunter2@prometheus:9090"),
        ("phases", "--url", "http://admin:hunter2@10.0.0.7:9847"),
        ("doctor", "--url", "http://admin:hunter2@10.0.0.7:9847"),
    ],
)
def test_a_password_in_a_refused_address_is_not_repeated(arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)

    assert code == 2
    assert "://***@" in err
    assert "hunter2" not in out + err


@pytest.mark.parametrize("name", INVALID)
def test_all_problems_of_an_invalid_node_file_are_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file breaks one rule; invalid-many.yaml breaks many and gets one report of all."""
    monkeypatch.chdir(DATA)

    report = (DATA / f"{name}.txt").read_text(encoding="utf-8").replace("FOLDER", str(DATA))
    hint = ELSEWHERE if name in RIGHT_ELSEWHERE else ""
    assert run("config", "check", f"{name}.yaml") == (2, "", report + hint)


@pytest.mark.parametrize("name", RIGHT_ELSEWHERE)
def test_a_node_file_for_another_node_is_valid_with_elsewhere(name: str) -> None:
    exit_code, shown, err = run("config", "check", "--elsewhere", str(DATA / f"{name}.yaml"))

    assert (exit_code, err) == (0, "")
    assert shown.count("vllm.entrypoints.openai.api_server") == 2


def test_a_node_file_invalid_on_any_node_is_refused_with_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(DATA)

    report = (DATA / "invalid-gpus-overlap.txt").read_text(encoding="utf-8")
    assert run("config", "check", "--elsewhere", "invalid-gpus-overlap.yaml") == (2, "", report)


@pytest.mark.parametrize("name", ["pair", "routed", "attach"])
def test_a_valid_node_file_is_shown_with_its_commands(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DATA)

    shown = (DATA / f"{name}.txt").read_text(encoding="utf-8")
    assert run("config", "check", f"{name}.yaml") == (0, shown, "")
    assert "secret" not in shown


@pytest.mark.parametrize("name", ["pair", "routed", "attach"])
def test_config_check_prints_a_valid_node_file_as_json(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DATA)

    shown = (DATA / f"{name}.json").read_text(encoding="utf-8")
    assert run("config", "check", "--json", f"{name}.yaml") == (0, shown, "")


def test_the_schema_for_editors_is_printed() -> None:
    exit_code, out, err = run("config", "schema")

    assert (exit_code, err) == (0, "")
    assert json.loads(out) == node_file_schema()


def test_problems_come_as_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA)

    exit_code, out, err = run("config", "check", "--json", "invalid-gpus-overlap.yaml")

    assert exit_code == 2
    assert err == (DATA / "invalid-gpus-overlap.txt").read_text(encoding="utf-8")
    assert json.loads(out) == {
        "problems": [
            {
                "path": "workers[1].gpus",
                "line": 12,
                "message": "GPU 1 already belongs to prefill-0 (workers[0])",
                "hint": "",
            }
        ]
    }


def test_a_node_file_without_workers_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("node: gpu-7\n", encoding="utf-8")

    assert run("config", "check", str(file)) == (
        0,
        "gpu-7: devices auto, metrics page on 0.0.0.0:9847\n\nno workers\n",
        "",
    )


@pytest.mark.parametrize(
    ("shell", "first", "install"),
    [
        ("bash", "# To install:", "bash-completion/completions"),
        ("zsh", "#compdef disagg-node", ".zfunc"),
        ("fish", "# To install:", "fish/completions"),
    ],
)
def test_a_completion_script_says_how_to_install_it(shell: str, first: str, install: str) -> None:
    exit_code, script, _ = run("completion", shell)

    assert exit_code == 0
    assert script.startswith(first)
    assert install in script
    assert "_DISAGG_NODE_COMPLETE" in script


def test_the_completion_is_for_the_shell_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run("completion")[1] == run("completion", "fish")[1]

    monkeypatch.setenv("SHELL", "/bin/tcsh")
    exit_code, out, err = run("completion")
    assert (exit_code, out) == (2, "")
    assert err.endswith("Error: say for which shell: bash, zsh, fish\n")


def test_completing_a_command_lists_the_commands_and_imports_none() -> None:
    shown = in_a_fresh_interpreter(
        "import os, sys\n"
        "os.environ |= {'_DISAGG_NODE_COMPLETE': 'zsh_complete',"
        " 'COMP_WORDS': 'disagg-node co', 'COMP_CWORD': '1'}\n"
        "from disagg_cluster.cli.main import main\n"
        "try:\n"
        "    main(prog_name='disagg-node')\n"
        "finally:\n"
        "    ours = [m for m in sys.modules if '.cli.co' in m]\n"
        "    print('imported', *ours)\n"
    )

    assert shown.splitlines() == [
        *("plain", "config", "Check a node file without starting it."),
        *("plain", "container-init", "Run as the first process of a container."),
        *("plain", "compare", "Compare two spans of time at equal load."),
        *("plain", "completion", "Print the completion script of a shell."),
        "imported",
    ]


def test_constants_repeated_in_help_texts_match_their_source() -> None:
    assert tuple(InstallPart) == PARTS
    assert PlannerConfig().prometheus.url == DEFAULT_URL


def test_a_python_without_the_engine_module_is_reported_by_config_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("disagg_cluster.nodefile.reading._lacks", lambda *_: True)

    code, out, err = run("config", "check", str(DATA / "pair.yaml"))

    assert (code, out) == (2, "")
    assert "has no module vllm\n    give the interpreter of the environment that holds vllm" in err
    assert err.endswith(ELSEWHERE)
