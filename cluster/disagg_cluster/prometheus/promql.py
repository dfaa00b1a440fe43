"""Parts of PromQL expressions; pure."""


def matcher(label: str, value: str) -> str:
    """Return a label matcher of a selector, for any value."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{label}="{quoted}"'
