"""The shape of a node file as a JSON schema, which editors complete and check by."""

from __future__ import annotations

from pydantic import JsonValue

from disagg_cluster.config import NodeConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def node_file_schema() -> dict[str, JsonValue]:
    """Return the schema; it knows every key and value, but not which of them fit together."""
    schema = NodeConfig.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for field in section.get("properties", {}).values():
            # A key is title enough; an editor would show "Drain Seconds" above it.
            field.pop("title", None)
    return {"$schema": DIALECT, **schema, "title": "Node file of disagg-node"}
