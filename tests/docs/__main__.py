"""Write the generated parts of docs/, and the man pages: `python -m tests.docs`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from sfad.core.state.access import TABLE
from sfad.daemon.loop.policy import ACCESS
from sfad.features.metrics.table import METRICS
from sfad.protocol.holds import HOLDS
from sfad.protocol.limits_object import schema
from sfad.protocol.messages import pack_message
from sfad.protocol.requests.base import Reply, Request

from . import json_schemas, man, notation, protocol
from .examples import EXAMPLES
from .pages import DOCS, pages, regenerate
from .states import mermaid

MAN = DOCS / "man"
WIDTH = 32
"""Bytes on a line of hex."""


@cache
def parts() -> Mapping[str, str]:
    """Return every generated part, by the name in its marker."""
    fixed = {
        "states": f"```mermaid\n{mermaid()}```\n",
        "metrics": metrics(),
        "access": access_table(),
        "holds": holds(),
    }
    return fixed | protocol.parts() | {name: shown(message) for name, message in EXAMPLES.items()}


def access_table() -> str:
    """Return who may use which verb, from the table of the core."""
    people = {"anyone": "yes", "admin": "root, admins", "gateway": "the gateway"}
    runs = {"one": "one run", "many": "runs", "none": "–"}
    lines = [
        "| verb | outside runs | inside a run | with `--leaf` | about | `--allow` |",
        "|---|---|---|---|---|---|",
    ]
    rules = {**TABLE, **ACCESS}
    for verb, access in sorted(rules.items()):
        inside, leaf = (
            "yes" if allowed else "no" for allowed in (access.inside, access.inside and access.leaf)
        )
        name = "" if access.narrowed_by is None else f"`{access.narrowed_by or verb}`"
        lines.append(
            f"| `{verb}` | {people[access.outside]} | {inside} | {leaf} | {runs[access.scope]} "
            f"| {name} |"
        )
    return "\n".join(lines) + "\n"


def holds() -> str:
    """Return the table of the kinds of hold."""
    rows = (
        f"| `{kind}` | {', '.join(f'`{what}`' for what in spec.blocks)} | {spec.means} "
        f"| {spec.ends} |"
        for kind, spec in HOLDS.items()
    )
    return "\n".join(["| kind | blocks | why it waits | until |", "|---|---|---|---|", *rows, ""])


def metrics() -> str:
    """Return the table of metrics."""
    rows = (
        (
            f"| `{each.shown}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} "
            f"| {each.help} |"
        )
        for each in METRICS
    )
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows]) + "\n"


def shown(message: Request | Reply) -> str:
    """Return a message in the notation of protocol.md, and its frame in hex."""
    frame = pack_message(message)
    value = msgspec.msgpack.decode(frame[4:])
    lines = [frame[at : at + WIDTH].hex(" ", -4) for at in range(0, len(frame), WIDTH)]
    return f"```text\n{notation.write(value)}\n```\n```hex\n" + "\n".join(lines) + "\n```\n"


def files() -> dict[Path, str]:
    """Return the files of docs/ that are generated as a whole."""
    return {
        DOCS / "json.schema.json": json_schemas.text(),
        DOCS / "limits.schema.json": schema().decode(),
    } | {MAN / name: text for name, text in man.pages()}


def main() -> None:
    """Rewrite the pages and files whose generated parts are out of date."""
    for file, text in files().items():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"wrote {file.name}")
    for page in pages():
        before = page.read_text()
        after = regenerate(before, parts())
        if after != before:
            page.write_text(after)
            print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
