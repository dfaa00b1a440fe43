"""Ways in which other exporters are to show what we know."""

from __future__ import annotations

from pydantic import Field

from disagg_cluster.config.section import Section
from disagg_cluster.config.values import PathText


class Bridges(Section):
    """What is written for other exporters."""

    hpc_job_dir: PathText | None = Field(
        default=None, description="the path of dcgm-exporter's folder for job mapping files"
    )
