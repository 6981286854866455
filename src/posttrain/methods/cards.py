"""A method's card: formula, paper, parts with each default and its origin, needs, differences.

Everything on a card is read off the code: the docstring of the method's file, the signature of its
function, and the parts of the method it returns. `write_docs` writes them as pages:
``python -m posttrain.methods.cards docs/methods``.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.methods import METHODS, PAPER_ARGUMENTS
from posttrain.methods.catalogue import ORDER, Entry, all_methods, entry
from posttrain.methods.fields import Described, describe_part
from posttrain.types.method import Method
from posttrain.types.probe import Probe

SECTIONS = ("Paper", "Formula", "Needs", "Differs", "Defaults", "Checked")
"""Headings of a method file's docstring, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What is known of a method; the last five fields are empty while it is not built."""

    entry: Entry
    summary: str
    sections: Mapping[str, str]
    """By heading, the paragraphs of the method file's docstring."""
    arguments: Mapping[str, str]
    """Arguments of the preset with their defaults."""
    parts: tuple[tuple[str, Described], ...]
    """(axis, part) of the method with its paper's arguments."""
    models: tuple[str, ...]
    """Models it trains or scores with."""


def card(name: str) -> Card:
    """The card of a method.

    Raises:
        ConfigError: the catalogue has no such method; names the nearest one.
    """
    found = entry(name)
    preset = METHODS.get(found.name)
    if preset is None:
        return Card(
            entry=found, summary=found.title, sections={}, arguments={}, parts=(), models=()
        )
    method = preset(**PAPER_ARGUMENTS.get(found.name, {}))
    summary, sections = _docstring(inspect.getmodule(preset).__doc__ or "")
    return Card(
        entry=found,
        summary=summary,
        sections=sections,
        arguments={
            parameter.name: "needed"
            if parameter.default is inspect.Parameter.empty
            else repr(parameter.default)
            for parameter in inspect.signature(preset).parameters.values()
        },
        parts=tuple(_parts(method)),
        models=tuple(sorted({*method.terms, *(probe.model for probe in method.probes)})),
    )


def markdown(shown: Card) -> str:
    """The card as a page."""
    found = shown.entry
    lines = [
        f"# {found.title}",
        "",
        f"`{found.name}`: {found.state}. {found.direction}, {found.topic}.",
    ]
    if found.papers:
        lines += ["", "Papers: " + ", ".join(_link(paper) for paper in found.papers)]
    if found.state != "built":
        if found.part:
            lines += ["", f"Take the part `{found.part}` into a method."]
        lines += ["", "Made of:", ""]
        lines += [f"- {axis}: {text}" for axis, text in found.parts.items()]
        return "\n".join(lines) + "\n"
    lines += ["", shown.summary, ""]
    for heading, text in shown.sections.items():
        lines += [
            f"## {heading}",
            "",
            f"```text\n{text}\n```" if heading == "Formula" else text,
            "",
        ]
    lines += ["## Preset", "", "```python", _call(found.name), "```", ""]
    lines += [f"- `{name}`: {default}" for name, default in shown.arguments.items()]
    lines += ["", f"Models: {', '.join(shown.models)}.", "", "## Parts", ""]
    for axis, part in shown.parts:
        lines += [f"### {axis}", "", *_bullets(part, 0), ""]
    curve = "none yet" if found.curve is None else f"`benchmarks/results/methods/{found.name}.json`"
    lines += [f"Recorded run: {curve}."]
    return "\n".join(lines) + "\n"


def index() -> str:
    """A page that lists every method by direction and topic."""
    methods = all_methods()
    counts = Counter(method.state for method in methods)
    lines = ["# Methods", "", "Built: there is a preset. Part: another method can take it.", ""]
    lines += [f"{len(methods)} methods: " + ", ".join(f"{counts[s]} {s}" for s in ORDER) + ".", ""]
    for direction in dict.fromkeys(method.direction for method in methods):
        lines += [f"## {direction}", ""]
        inside = [method for method in methods if method.direction == direction]
        for topic in dict.fromkeys(method.topic for method in inside):
            lines += [f"### {topic}", ""]
            lines += [_row(method) for method in inside if method.topic == topic]
            lines += [""]
    return "\n".join(lines)


def docs() -> dict[str, str]:
    """The generated pages by file name."""
    pages = {f"{name}.md": markdown(card(name)) for name in METHODS}
    return {"index.md": index(), **pages}


def write_docs(folder: Path) -> None:
    """Write the generated pages into a folder, and take out those of methods that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = docs()
    for stale in set(folder.glob("*.md")) - {folder / name for name in pages}:
        stale.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """First paragraph, and the sections whose heading begins a line."""
    first, _, rest = inspect.cleandoc(text).partition("\n\n")
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in rest.splitlines():
        heading = line.split(" ", 1)[0]
        if heading in SECTIONS:
            current = sections.setdefault(heading, [])
            current.append(" " * len(heading) + line[len(heading) :])
        else:
            current.append(line)
    return first, {
        name: textwrap.dedent("\n".join(lines)).strip()
        if name == "Formula"
        else " ".join(" ".join(lines).split())
        for name, lines in sections.items()
    }


def _parts(method: Method) -> Iterator[tuple[str, Described]]:
    for axis, part in method.parts.items():
        if axis == "terms":
            for model, terms in method.terms.items():
                for term in terms:
                    yield f"term of {model}", describe_part(term)
        elif isinstance(part, tuple):
            for one in part:
                name = f"probe {one.name}" if isinstance(one, Probe) else axis
                yield name, describe_part(one)
        else:
            yield axis, describe_part(part)


def _bullets(part: Described, depth: int) -> list[str]:
    pad = "  " * depth
    lines = [] if depth else [f"`{part.part}`: {part.says}", ""]
    lines += [f"{pad}- `{f.name}` = `{f.value}`: {f.meaning}".rstrip(": ") for f in part.fields]
    for name, inner in part.inner:
        lines.append(f"{pad}- `{name}` = `{inner.part}`: {inner.says}")
        lines += _bullets(inner, depth + 1)
    return lines


def _call(name: str) -> str:
    given = ", ".join(f"{k}={v!r}" for k, v in PAPER_ARGUMENTS.get(name, {}).items())
    return f"from posttrain.methods import {name}\n\n{name}({given})"


def _row(method: Entry) -> str:
    papers = ", ".join(_link(paper) for paper in method.papers)
    name = f"[`{method.name}`]({method.name}.md)" if method.state == "built" else f"`{method.name}`"
    return f"- {name} {method.title}" + (f" ({papers})" if papers else "") + f": {method.state}"


def _link(paper: str) -> str:
    return f"[{paper}](https://arxiv.org/abs/{paper})"


if __name__ == "__main__":
    write_docs(Path(sys.argv[1]))
