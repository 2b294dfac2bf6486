"""The tables name modules, tests and lines that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def test_modules_and_their_tests_exist() -> None:
    for row in tomllib.loads((HERE / "parts.toml").read_text()).values():
        assert [pattern for pattern in row["modules"] if not any(ROOT.glob(pattern))] == []
        words = " ".join([row["slow"], *row["modules"].values()]).split()
        assert [word for word in words if not any((ROOT / "tests").glob(f"{word}*"))] == []


def test_harmless_lines_exist_and_have_a_reason() -> None:
    for module, rows in tomllib.loads((HERE / "harmless.toml").read_text()).items():
        code = " ".join(line.strip() for line in (ROOT / module).read_text().splitlines())
        for row in rows:
            assert row.keys() == {"was", "now", "why"}
            assert row["was"] in code, (
                f"{module} has changed: remove or rewrite the row of {row['was']!r}"
            )
