"""`python -m helm.generator`: write the generated files of the chart."""

from __future__ import annotations

from helm.generator.chart import CHART, generated


def main() -> None:
    """Write them, and remove copies whose originals no longer exist."""
    written = generated()
    for copy in (CHART / "files").rglob("*.*"):
        if str(copy.relative_to(CHART)) not in written:
            copy.unlink()
    for name, text in written.items():
        path = CHART / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
