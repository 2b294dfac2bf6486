"""The generated parts are up to date, and their markers name generated parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfad.core.run import mermaid
from sfad.protocol.types import Status
from tests.docs.__main__ import files, parts
from tests.docs.pages import blocks, generated, pages, regenerate, rows, text_of


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_make_docs_would_change_nothing(page: Path) -> None:
    text = page.read_text()
    assert text.count("<!-- generated") == text.count("<!-- end -->") == len(generated(text))
    assert regenerate(text, parts()) == text, "run `make docs`"


def test_generated_files_are_up_to_date() -> None:
    for file, text in files().items():
        assert file.read_text() == text, "run `make docs`"


def test_everything_generated_is_on_a_page() -> None:
    assert sorted(parts()) == sorted(name for page in pages() for name in generated(page.read_text()))


def test_the_diagram_is_the_table() -> None:
    diagrams = [block.text for block in blocks(text_of("states.md")) if block.language == "mermaid"]
    assert diagrams == [mermaid()]


def test_every_status_is_explained() -> None:
    first = {row[0].strip("`") for row in rows(text_of("states.md"))}
    assert {status.value for status in Status if not status.rejected} | {"rejected_…"} <= first
