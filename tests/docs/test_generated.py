"""The generated parts are up to date, and their markers name generated parts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.core import TyperOption

from sfactl import app, verbs
from sfad.protocol.types import Status
from tests.docs.__main__ import MAN, files, parts
from tests.docs.pages import blocks, generated, pages, regenerate, rows, text_of
from tests.docs.states import mermaid


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_make_docs_would_change_nothing(page: Path) -> None:
    text = page.read_text()
    assert text.count("<!-- generated") == text.count("<!-- end -->") == len(generated(text))
    assert regenerate(text, parts()) == text, "run `make docs`"


def test_generated_files_are_up_to_date() -> None:
    for file, text in files().items():
        assert file.read_text() == text, "run `make docs`"


def test_the_man_page_has_every_verb_and_option() -> None:
    page = (MAN / "sfactl.1").read_text().replace("\\-", "-")
    for verb in verbs.everything():
        assert f'.SS "sfactl {verb} ' in page
        options = [each for each in app.load(verb).params if isinstance(each, TyperOption)]
        assert all(
            re.search(rf'^\.B ".*{option.opts[0]}\b', page, re.MULTILINE) for option in options
        ), verb


@pytest.mark.needs("groff")
def test_groff_has_no_complaint_about_the_man_pages() -> None:
    words = ["groff", "-Kutf8", "-man", "-ww", "-z", "-Tutf8", *map(str, MAN.iterdir())]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stderr == ""


def test_everything_generated_is_on_a_page() -> None:
    assert sorted(parts()) == sorted(
        name for page in pages() for name in generated(page.read_text())
    )


def test_the_diagram_is_the_table() -> None:
    diagrams = [block.text for block in blocks(text_of("states.md")) if block.language == "mermaid"]
    assert diagrams == [mermaid()]


def test_every_status_is_explained() -> None:
    first = {row[0].strip("`") for row in rows(text_of("states.md"))}
    assert {status.value for status in Status if not status.rejected} | {"rejected_…"} <= first
