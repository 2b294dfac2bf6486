"""The documentation as text: its pages, their fenced blocks, tables, sections and generated
parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_GENERATED = re.compile(r"(<!-- generated: ([\w -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str


def pages() -> list[Path]:
    """Return every page that users read."""
    return [README, CHANGELOG, CONTRIBUTING, *sorted(DOCS.glob("*.md"))]


def text_of(name: str) -> str:
    """Return a page of docs/."""
    return (DOCS / name).read_text()


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(language, body) for language, body in _FENCE.findall(text)]


def spans(text: str) -> list[str]:
    """Return the inline code of a page, without fenced blocks."""
    return _SPAN.findall(_FENCE.sub("", text))


def without_code(text: str) -> str:
    """Return a page without code."""
    return _SPAN.sub("", _FENCE.sub("", text))


def sections(text: str, mark: str = "###") -> dict[str, str]:
    """Return the text below each heading of one level, by the heading without its backquotes."""
    parts = re.split(rf"^{mark} (.+)$", text, flags=re.MULTILINE)
    return {
        title.replace("`", ""): re.split(r"^#{1,3} ", body, maxsplit=1, flags=re.MULTILINE)[0]
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def rows(text: str) -> Iterator[list[str]]:
    """Return the cells of every table row, without the row of dashes."""
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def generated(text: str) -> dict[str, str]:
    """Return the generated parts of a page, by name."""
    return {name: body for _, name, body, _ in _GENERATED.findall(text)}


def regenerate(text: str, parts: Mapping[str, str]) -> str:
    """Return the page with its generated parts replaced. Raise `KeyError` for an unknown part."""
    return _GENERATED.sub(lambda found: found[1] + parts[found[2]] + found[4], text)
