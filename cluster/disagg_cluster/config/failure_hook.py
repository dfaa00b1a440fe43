"""What is run or told when a worker fails."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from disagg_cluster.config.section import Section
from disagg_cluster.config.values import CommandWords, HookUrl, Seconds

FailureEvent = Literal["crashed", "hung", "failed", "recovered"]
USUAL_EVENTS: tuple[FailureEvent, ...] = ("crashed", "hung", "failed")


class FailureHook(Section):
    """A command that gets each failure as JSON on its standard input, or a URL to send it to."""

    command: CommandWords | None = Field(
        default=None, description="a list of a program and, if it has any, its arguments"
    )
    url: HookUrl | None = Field(
        default=None, description="an address such as https://hooks.example.com/gpu-7"
    )
    events: Annotated[tuple[FailureEvent, ...], Field(strict=False)] = Field(
        default=USUAL_EVENTS, description="a list out of crashed, hung, failed, recovered"
    )
    deadline_seconds: Annotated[Seconds, Field(le=300)] = Field(
        default=10.0, description="seconds, a number above 0 and up to 300"
    )
