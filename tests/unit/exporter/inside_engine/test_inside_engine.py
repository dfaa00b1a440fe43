"""The folder that is put alone on an engine's PYTHONPATH: complete, and harmless."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from pathlib import Path

import disagg_exporter
from disagg_exporter.steps.plugin_silence import PLUGIN_GROUP, PLUGIN_NAME

FOLDER = Path(disagg_exporter.__file__).parent / "inside_engine"

# A bare interpreter that knows the standard library, our folder and a stub of vLLM's one class.
PROBE = """
import json, sys, types
sys.path.append(sys.argv[1])
stub = types.ModuleType("vllm.v1.metrics.loggers")
stub.StatLoggerBase = object
for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[stub.__name__] = stub
before = set(sys.modules)
import disagg_steps.vllm
from importlib.metadata import entry_points
found = [e.value for e in entry_points(group=sys.argv[2], name=sys.argv[3])]
loaded = entry_points(group=sys.argv[2])[sys.argv[3]].load()
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({
    "foreign": sorted(names - set(sys.stdlib_module_names) - {"disagg_steps"}),
    "found": found,
    "loaded": loaded.__qualname__,
}))
"""


def test_the_folder_needs_only_the_standard_library_and_is_found_as_a_plugin() -> None:
    asked = [str(FOLDER), PLUGIN_GROUP, PLUGIN_NAME]

    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROBE, *asked],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert json.loads(answer.stdout) == {
        "foreign": [],
        "found": ["disagg_steps.vllm:StepsLogger"],
        "loaded": "StepsLogger",
    }


def test_the_metadata_names_one_distribution_with_one_entry_point() -> None:
    context = DistributionFinder.Context(path=[str(FOLDER)])

    found: list[Distribution] = list(MetadataPathFinder.find_distributions(context))

    assert [one.metadata["Name"] for one in found] == ["disagg-steps"]
    assert [(e.group, e.name) for e in found[0].entry_points] == [(PLUGIN_GROUP, PLUGIN_NAME)]


def test_the_folder_contains_nothing_else() -> None:
    """Any file here could shadow a module of the engine."""
    assert {entry.name for entry in FOLDER.iterdir()} - {"__pycache__"} == {
        "disagg_steps",
        "disagg_steps-1.dist-info",
    }
