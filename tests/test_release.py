"""What `make release` says of the dependencies."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.release import bill_of_materials

ROOT = Path(__file__).parents[1]


def test_each_dependency_has_a_version_and_a_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[^\w.-]", text)[0].replace(".", "-")
        for text in project["dependencies"]
        if "python_version" not in text
    }
    components = {each["name"]: each for each in bill_of_materials()["components"]}
    assert wanted <= components.keys()
    for name, each in components.items():
        assert each["version"], name
        assert each["licenses"][0]["license"]["name"] != "unknown", name
