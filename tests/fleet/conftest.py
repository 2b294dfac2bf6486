"""The cluster and the daemons of the tests of a file, and the browser of the tests of the
console."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.browser.conftest import browser

from .asking import Daemons
from .cluster import Cluster, cluster, daemons

__all__ = ["browser"]


@pytest.fixture(scope="module")
def ray() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def fleet(ray: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with daemons(ray, tmp_path_factory.mktemp("fleet")) as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with tracked, untracked and ignored files."""
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    for name, text in (
        ("kept.txt", "one\n"),
        ("gone.txt", "two\n"),
        ("tool.sh", "true\n"),
        ("sub/here", ""),
        (".gitignore", "*.log\n"),
    ):
        (root / name).write_text(text)
    (root / "secret.log").write_text("not sent\n")
    (root / "big").write_bytes(os.urandom(3 << 20))  # several pieces
    subprocess.run(["git", "init", "--quiet", root], check=True)
    subprocess.run(["git", "-C", root, "add", "kept.txt"], check=True)
    return root
