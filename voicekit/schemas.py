"""A JSON Schema that somebody else wrote: is it one a model can fill, and what holds its arguments to it?

A tool of our own has its schema from its signature (see arguments.py). One that came over the wire has the schema only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list[Any], "object": dict[str, Any],
    "null": None,
}  # fmt: skip


def flaw(schema: Any) -> str:
    """Why a provider would ignore or misread a tool's schema, in words; "" if it would not.

    What is ignored makes a model call with empty arguments, so it is found before anything is sent.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return 'parameters is a JSON Schema with "type": "object"'
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or not all(isinstance(each, Mapping) for each in properties.values()):
        return "properties is an object with a schema for each parameter"
    required = schema.get("required", [])
    if not isinstance(required, (list, tuple)):
        return "required is a list of names"
    if missing := [str(name) for name in required if name not in properties]:
        return f"{', '.join(missing)} is required but not among the properties, so no model can know of it"
    for name, each in properties.items():
        if not set(each) & {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}:
            return f"{name} has no type"
    return ""


def model_of_schema(name: str, schema: Mapping[str, Any]) -> type[BaseModel]:
    """A pydantic model that holds arguments to a schema: names, required, types and enumerations.

    Finer rules (patterns, ranges, nested shapes) are left to the server, which checks as well. Raises ValueError for a
    schema that would be ignored, see `flaw`.
    """
    if problem := flaw(schema):
        raise ValueError(f"tool {name}: {problem}")
    required = schema.get("required", [])
    fields: dict[str, Any] = {}
    for number, (key, each) in enumerate(schema.get("properties", {}).items()):
        # An alias: a parameter may have a name that a field of a model cannot have.
        fields[f"field_{number}"] = (_type(each), Field(... if key in required else None, alias=key))
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def named(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a model's fields under the names that the schema gives them."""
    return {model.model_fields[field].alias or field: value for field, value in values.items()}


def _type(schema: Mapping[str, Any]) -> Any:
    if options := schema.get("enum"):
        return Literal[tuple(options)]
    kind = schema.get("type")
    if isinstance(kind, list):
        found: Any = None
        for each in kind:
            found = TYPES.get(each, Any) if found is None else found | TYPES.get(each, Any)
        return found
    return TYPES.get(kind, Any) if isinstance(kind, str) else Any
