"""`python -m helm.generator`: write the files of the chart that repeat other rooms."""

from __future__ import annotations

from helm.generator.chart import CHART, generated


def main() -> None:
    """Write them; each says elsewhere where it comes from."""
    for name, text in generated().items():
        path = CHART / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
