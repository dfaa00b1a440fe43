"""Locations of the files that are shipped with the code."""

from __future__ import annotations

import importlib.resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

import disagg_exporter


def asset_dir(kind: Literal["grafana", "alerts", "examples"]) -> Traversable:
    """Return the folder of dashboards, rules or example node files.

    In an installed wheel it is inside the package, in a checkout at the repository's root.
    """
    shipped = importlib.resources.files("disagg_cluster").joinpath("_assets", kind)
    return shipped if shipped.is_dir() else Path(__file__).parents[4] / kind


def engine_side_folder() -> Path:
    """Return the folder for an engine's PYTHONPATH: our plugin and nothing else."""
    return Path(disagg_exporter.__file__).parent / "inside_engine"
