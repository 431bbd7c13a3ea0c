"""A tool's description is somebody else's text in the model's context: pinned, and reviewed before it is used.

    pins = pin(server.offers)                         once, after a person has read them
    review(server.offers, pins, local_names=names)    at every connection

The protection is the pin: what has changed since somebody read it is held back until somebody has read it again, and
the difference is shown. The rules (data/description_rules.csv) only help who reads: they find clumsy orders, names that
look like another one and characters nobody can see. A description that passes them is not safe; the gate is for that.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from voicekit.ledger import canonical
from voicekit.models import data_path
from voicekit.reading import texts
from voicekit.schemas import flaw

# Words in quotation marks are talked about, not said: documentation may quote an attack. An attack may be quoted, too.
QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|„[^“”]*[“”]|«[^»]*»|`[^`]*`|(?<!\w)'[^']*'(?!\w)")
TAGS = re.compile("[\U000e0020-\U000e007e]+")  # a second, invisible ASCII
BREAKS = re.compile("[\r\u2028\u2029]")  # end a line as "\n" does, and look the same
# Letters that look like Latin ones: the common Cyrillic and Greek ones, and what is read as another letter or digit.
LOOK_ALIKES = str.maketrans("аеорсухіјѕԁһӏԛԝвкмнтαονρτυκιεχωγ01i", "aeopcyxljsdhlqwbkmhtaovptuklexwyoll")


class Described(Protocol):
    """What can be reviewed: a Tool of ours, or an offer of an MCP server."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> dict[str, Any]: ...


class Pin(NamedTuple):
    """What somebody has read and agreed to: the hash of a tool as offered, and the text for the next difference."""

    sha256: str
    text: str


@dataclass(frozen=True)
class Finding:
    """Why a tool is held back. `rule`: order, steers, shadows, hidden, schema, changed, new; or removed: it is gone."""

    tool: str
    rule: str
    text: str


@dataclass(frozen=True)
class Review:
    """What came of a review; prints as one line per finding, a difference below its line."""

    findings: tuple[Finding, ...]
    names: tuple[str, ...]

    @property
    def held(self) -> list[str]:
        """The names that are held back, in order."""
        return [name for name in self.names if any(each.tool == name for each in self.findings)]

    @property
    def passed(self) -> list[str]:
        """The names without a finding. That is all that is known of them."""
        return [name for name in self.names if name not in self.held]

    def __repr__(self) -> str:
        lines = [
            f"{'gone' if each.rule == 'removed' else 'held back'}: {visible(each.tool)} ({each.rule}): {each.text}"
            for each in self.findings
        ]
        return "\n".join([*lines, f"let through: {', '.join(self.passed) or 'nothing'}"])


def reads(tool: Described) -> str:
    """What is offered, for a person: name, each line of the description, each parameter, the rest of the schema, hint.

    Every line says what it is, so that no description can pass one off as a parameter. It is broken at line feeds only.
    """
    schema = tool.parameters if isinstance(tool.parameters, Mapping) else {}
    parameters = schema["properties"] if isinstance(schema.get("properties"), Mapping) else {}
    rest = {name: value for name, value in schema.items() if name != "properties"} if parameters else tool.parameters
    lines = [f"name: {tool.name}", *(f"description: {line}" for line in tool.description.split("\n"))]
    lines += [f"parameter {name}: {canonical(each)}" for name, each in parameters.items()]
    return "\n".join([*lines, f"schema: {canonical(rest)}", f"hint: {_hint(tool)}"])


def pin(tools: Iterable[Described]) -> dict[str, Pin]:
    """Pins of all `tools` by name. Raises ValueError for two tools of one name.

    To be kept with the application: `json.dumps(pins)` writes them, `{name: Pin(*pair) for …}` reads them.
    """
    pins: dict[str, Pin] = {}
    for tool in tools:
        if tool.name in pins:
            raise ValueError(f"two tools are called {visible(tool.name)}; a pin is for one")
        pins[tool.name] = Pin(_hash(tool), reads(tool))
    return pins


def review(
    tools: Iterable[Described], pins: Mapping[str, Pin] | None = None, *, local_names: Iterable[str] = ()
) -> Review:
    """Go through tools that somebody else describes, against `pins` (None: this is the first time) and the rules.

    A tool that is pinned and not among `tools` is a finding as well: who counted on it has to know.

    local_names   the tools of the application itself, whose names nobody else may use or imitate
    """
    offered = list(tools)
    names = [tool.name for tool in offered]
    known = list(dict.fromkeys([*local_names, *names]))
    found: list[Finding] = []
    for number, tool in enumerate(offered):
        others = [name for name in known if name != tool.name]
        found += [Finding(tool.name, rule, text) for rule, text in _lint(tool, others)]
        found += [Finding(tool.name, "shadows", text) for text in _shadows(tool.name, local_names, names[:number])]
        if problem := flaw(tool.parameters):
            found.append(Finding(tool.name, "schema", problem))
        if pins is not None:
            found += _unpinned(tool, pins)
    gone = [name for name in pins or {} if name not in names]
    found += [Finding(name, "removed", "it was read, and is not offered any more") for name in gone]
    return Review(tuple(found), tuple(dict.fromkeys(names)))


def difference(before: str, after: str) -> str:
    """The lines that went (-) and came (+), hidden characters spelled out."""
    old, new = (BREAKS.sub(lambda found: f"<U+{ord(found[0]):04X}>", visible(text)) for text in (before, after))
    lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=0))
    return "\n".join(line for line in lines[2:] if not line.startswith("@@"))


def visible(text: str) -> str:
    """The text with what cannot be seen spelled out: <U+200B>, and words in tag characters as <hidden: words>."""
    read = TAGS.sub(lambda run: f"<hidden: {''.join(chr(ord(c) - 0xE0000) for c in run[0])}>", text)
    unseen = hidden(read)
    return "".join(f"<U+{ord(c):04X}>" if c in unseen else c for c in read)


def hidden(text: str) -> set[str]:
    """The characters of a text that a reader does not see."""
    categories = {row["pattern"][1:-1] for row in _rules("hidden") if re.fullmatch(r"\{\w\w\}", row["pattern"])}
    listed = [row["pattern"] for row in _rules("hidden") if not re.fullmatch(r"\{\w\w\}", row["pattern"])]
    return {
        c
        for c in set(text) - set("\n\r\t")
        if unicodedata.category(c) in categories or any(re.match(pattern, c) for pattern in listed)
    }


def skeleton(name: str) -> str:
    """What a name looks like: compatibility forms, case, separators and look-alike letters made equal."""
    folded = unicodedata.normalize("NFKD", name).casefold().translate(LOOK_ALIKES)
    return "".join(c for c in folded if c.isalnum()).replace("rn", "m").replace("vv", "w")


@cache
def _rules(rule: str) -> tuple[dict[str, str], ...]:
    with data_path("description_rules.csv").open(newline="", encoding="utf-8") as file:
        return tuple(row for row in csv.DictReader(file) if row["rule"] == rule)


def _lint(tool: Described, others: list[str]) -> list[tuple[str, str]]:
    found = []
    written = [tool.name, tool.description, *texts(tool.parameters), *_keys(tool.parameters)]
    names = "|".join(map(re.escape, others)) or r"\Z\A"
    for text in written:
        if unseen := hidden(text):
            spots = re.findall(r"<U\+\w+>|<hidden: [^>]*>", visible(text))
            found.append(("hidden", f"characters that nobody sees: {' '.join(dict.fromkeys(spots))}"))
        plain = QUOTED.sub(" ", unicodedata.normalize("NFKC", "".join(c for c in text if c not in unseen)))
        found += [
            (row["rule"], f'{row["why"]}: "{hit[0]}"')
            for row in (*_rules("order"), *_rules("steers"))
            if (hit := re.search(row["pattern"].replace("{other}", names), plain, re.IGNORECASE | re.DOTALL))
        ]
    return list(dict.fromkeys(found))


def _keys(value: Any) -> Iterator[str]:
    """The names in a schema: a model reads those of parameters, too."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key)
            yield from _keys(each)


def _shadows(name: str, local_names: Iterable[str], earlier: list[str]) -> list[str]:
    same = [local for local in local_names if skeleton(local) == skeleton(name)]
    twins = [other for other in earlier if skeleton(other) == skeleton(name)]
    return [f"the name of the local tool {local}, or one that looks like it" for local in same] + [
        f"looks like {visible(other)}, which is offered as well" for other in twins
    ]


def _unpinned(tool: Described, pins: Mapping[str, Pin]) -> list[Finding]:
    if tool.name not in pins:
        return [Finding(tool.name, "new", "nobody has read it yet")]
    known = pins[tool.name]
    if known.sha256 == _hash(tool):
        return []
    return [Finding(tool.name, "changed", f"not what was read:\n{difference(known.text, reads(tool))}")]


def _hash(tool: Described) -> str:
    """Of the whole offer as JSON: there no text passes for a part of the schema, nor one line break for another."""
    offered = canonical([tool.name, tool.description, tool.parameters, _hint(tool)])
    return hashlib.sha256(offered.encode("utf-8", "surrogatepass")).hexdigest()


def _hint(tool: Described) -> str:
    """What the server says of the effect: an offer holds its word, and a tool of ours would be served with its own."""
    return str(getattr(tool, "hint", getattr(tool, "effect", "")))
