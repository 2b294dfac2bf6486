"""What a gateway's processes load."""

from __future__ import annotations

from tests.test_imports import HEAVY, loaded_by


def test_a_gateway_loads_no_psutil() -> None:
    assert "psutil" not in loaded_by("import sfad.features.gateway.program.__main__")


def test_what_reads_bodies_loads_no_trio() -> None:
    """Each gateway of a user has such a process."""
    assert not loaded_by("import sfad.features.gateway.program.bodies.reading") & {
        *HEAVY,
        "typer",
        "sqlite3",
    }
