"""Tools of other people: five made-up MCP servers with eight tools each, from data/catalogue.csv.

A row is a tool as its server describes it from a `day` on; what it answers is a sentence with the arguments filled in
and, sometimes, a note that nobody asked for. Nothing outside is touched: this is what lesson 09 connects to.
"""

from __future__ import annotations

import csv
from functools import cache
from typing import Any

from voicekit.models import data_path
from voicekit.results import Result, ok
from voicekit.schemas import model_of_schema, named
from voicekit.tools import Tool


@cache
def _rows() -> tuple[dict[str, str], ...]:
    with data_path("catalogue.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def servers() -> list[str]:
    """The names of the servers."""
    return list(dict.fromkeys(row["server"] for row in _rows()))


def tools(server: str, day: int = 1) -> list[Tool]:
    """The tools of a server as they are on its n-th day. Raises ValueError for a server nobody runs."""
    if server not in servers():
        raise ValueError(f"unknown server {server!r}; known: {', '.join(servers())}")
    latest = {row["tool"]: row for row in _rows() if row["server"] == server and int(row["day"]) <= day}
    return [_tool(row) for row in latest.values()]


def exercise() -> dict[str, tuple[Tool, bool, str]]:
    """The tools to be reviewed in lesson 09, by name: the tool, whether it is to be held back, and what to look at."""
    with data_path("review_exercise.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    silent = {"answer": "", "note": ""}
    return {row["tool"]: (_tool(row | silent), row["verdict"] == "hold", row["hint"]) for row in rows}


def _tool(row: dict[str, str]) -> Tool:
    schema = _schema(row["parameters"])

    model = model_of_schema(row["tool"], schema)

    async def answer(**values: Any) -> Result:
        note = {"note": row["note"]} if row["note"] else {}
        return ok(row["answer"].format_map(named(model, values)), **note)

    return Tool(row["tool"], row["description"], schema, "read", answer, model, seconds=0.0)


def _schema(written: str) -> dict[str, Any]:
    """JSON Schema of `name: what it is; name?: what it is`; all are texts, one with a question mark can be left out."""
    properties, required = {}, []
    for name, _, description in (each.strip().partition(": ") for each in written.split(";") if each.strip()):
        properties[name.rstrip("?")] = {"type": "string", "description": description}
        if not name.endswith("?"):
            required.append(name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
