"""The options of an installation, which an upgrade uses again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from disagg_cluster.deploy.install.files import InstallPart
from disagg_cluster.deploy.install.plan import InstallError


@dataclass(frozen=True, slots=True)
class InstallChoices:
    """The options that determine an installation's files."""

    parts: tuple[InstallPart, ...]
    user: str
    datasource: str | None
    prometheus: str
    runbooks: str
    runbook_ending: str

    def remembered(self) -> Mapping[str, object]:
        """Return them as stored in the manifest."""
        return asdict(self) | {"parts": [part.value for part in self.parts]}


def recalled(remembered: Mapping[str, object], usual: InstallChoices) -> InstallChoices:
    """Return the choices stored in a manifest, with `usual` for what it lacks.

    Raises:
        InstallError: It names an unknown part.
    """
    known = {key: each for key, each in remembered.items() if key in asdict(usual)}
    parts = known.pop("parts", None)
    found = asdict(usual) | known
    if isinstance(parts, list):
        try:
            found["parts"] = tuple(InstallPart(part) for part in parts)
        except ValueError as error:
            raise InstallError(f"the record of the installation: {error}") from error
    return InstallChoices(**found)
