"""The shape of a node file: what a path in it means, and its JSON schema for editors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import get_args, get_origin

from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo
from pydantic.json_schema import CoreModeRef, CoreRef, DefsRef, GenerateJsonSchema

from disagg_cluster.config import NodeConfig, Section
from disagg_cluster.config.problems import YamlPath

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """The deepest place on a path for which the node file has a field.

    `path` leads there. `section` is the kind of mapping that belongs there, if one does; `field` is
    None for the file as a whole and for an item of a list of sections.
    """

    path: YamlPath
    field: FieldInfo | None
    section: type[BaseModel] | None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the section accepts."""
        return tuple(self.section.model_fields) if self.section else ()

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that the field accepts, if it accepts only some."""
        text = self.field.description if self.field else None
        return tuple(text[7:].split(", ")) if text and text.startswith("one of ") else ()

    @property
    def required(self) -> bool:
        """Whether the file must state this."""
        return self.field is not None and self.field.is_required()

    @property
    def expected(self) -> str:
        """What belongs here; completes "expected …"."""
        if self.section is not None:
            required = [
                key for key, field in self.section.model_fields.items() if field.is_required()
            ]
            return f"a mapping with {', '.join(required or self.keys)}"
        return (self.field.description if self.field else None) or "something else"


def find_entry(path: YamlPath, root: type[BaseModel] = NodeConfig) -> SchemaEntry:
    """Follow `path` as far as the file has fields for it; `root` is a node file by default."""
    entry = SchemaEntry((), None, root)
    items: type[BaseModel] | None = None
    for length, part in enumerate(path, start=1):
        if items is not None and isinstance(part, int):
            entry, items = SchemaEntry(path[:length], None, items), None
        elif entry.section is not None and part in entry.section.model_fields:
            field = entry.section.model_fields[str(part)]
            inner = _section_in(field.annotation)
            listed = get_origin(field.annotation) is tuple
            entry = SchemaEntry(path[:length], field, None if listed else inner)
            items = inner if listed else None
        else:
            break
    return entry


def home_of(key: str, inside: type[BaseModel] = NodeConfig) -> str | None:
    """Return where in the file a key belongs (`kv_transfer.connector`), if anywhere."""
    return _homes(inside).get(key)


@cache
def _homes(root: type[BaseModel]) -> Mapping[str, str]:
    """Return where each key of a file belongs; with several places, the first of them."""
    found: dict[str, str] = {}
    for name, field in root.model_fields.items():
        found.setdefault(name, name)
        section = _section_in(field.annotation)
        if section is not None:
            at = f"{name}[]" if get_origin(field.annotation) is tuple else name
            for key, place in _homes(section).items():
                found.setdefault(key, f"{at}.{place}")
    return found


def _section_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


class _NodeFileSchema(GenerateJsonSchema):
    """Names a section's definition by its title: class names change, published names do not."""

    def get_defs_ref(self, core_mode_ref: CoreModeRef) -> DefsRef:
        ref, mode = core_mode_ref
        for section in Section.__subclasses__():
            if title := section.model_config.get("title"):
                ref = CoreRef(ref.replace(f".{section.__name__}:", f".{title}:"))
        return super().get_defs_ref((ref, mode))


def node_file_schema() -> dict[str, JsonValue]:
    """Return the schema of a node file."""
    return file_schema(NodeConfig, "Node file of disagg-node")


def file_schema(root: type[BaseModel], title: str) -> dict[str, JsonValue]:
    """Return a file's schema: it covers every key and value, but not which of them fit together."""
    schema = root.model_json_schema(schema_generator=_NodeFileSchema)
    for section in (schema, *schema["$defs"].values()):
        for field in section.get("properties", {}).values():
            # A key is title enough; an editor would show "Drain Seconds" above it.
            field.pop("title", None)
    return {"$schema": DIALECT, **schema, "title": title}
