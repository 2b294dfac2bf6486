"""The service of the system on a kernel with all controllers, in a virtual machine."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from .boot import booted, impossible

INSIDE = Path(__file__).with_name("inside.py")
TESTS = len(re.findall(r"^def test_", INSIDE.read_text(), re.MULTILINE))


def test_the_service_of_the_system_with_all_controllers(tmp_path: Path) -> None:
    if os.environ.get("SFAD_TEST_VM") != "1":
        pytest.skip(
            "a virtual machine is booted with SFAD_TEST_VM=1: "
            "it downloads a kernel of 70 MB, and takes two minutes"
        )
    assert impossible() is None, impossible()
    said = booted(
        sys.executable,
        "-m",
        "pytest",
        "--color=no",
        "--rootdir",
        str(INSIDE.parents[2]),
        str(INSIDE),
        work=tmp_path,
    )
    assert f"{TESTS} passed" in said, said[-20_000:]
