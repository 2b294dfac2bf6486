"""Links resolve, and no page names a path of the machine that it was written on."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import DOCS, README, ROOT, generated, pages, spans, text_of, without_code
from tests.together import together

_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_MACHINE = re.compile(
    r"/work\b|/root\b|/tmp/\w|/home/(?!ann\b)|/opt/|pypi|artifactory|npmjs|\.internal\b"
)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links, without other sites."""
    return [
        target for target in _LINK.findall(without_code(page.read_text())) if "://" not in target
    ]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@together("page", pages())
def test_links_resolve(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file), target


def test_the_documents_are_short() -> None:
    """Without generated parts, examples, and the two pages of reference."""
    assert len(README.read_text().split()) <= 900
    words = 0
    for page in [README, *DOCS.glob("*.md")]:
        if page.name not in {"protocol.md", "configuration.md"}:
            text = page.read_text()
            for part in generated(text).values():
                text = text.replace(part, "")
            text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
            words += sum(re.search(r"\w", word) is not None for word in text.split())
    assert words <= 30_000


def test_the_readme_leads_to_every_page() -> None:
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= set(links(README))


@together("page", pages())
def test_no_path_of_a_machine(page: Path) -> None:
    assert _MACHINE.findall(page.read_text()) == []


@together("page", pages())
def test_lines_are_short_but_where_output_is_shown(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [
        line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "    "))
    ] == []


@together("page", pages())
def test_files_that_are_named_exist(page: Path) -> None:
    named = [
        span
        for span in spans(page.read_text())
        if re.match(r"(sfad|sfactl|tests|docs)/", span) and not re.search("VERB|sundays", span)
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_threat_model_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", text_of("threat-model.md")))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named
    assert named <= there, named - there
