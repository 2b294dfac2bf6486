"""What the console brings of others is what its list says."""

from __future__ import annotations

from tests.release import bill_of_materials
from tests.web.libraries import STATIC, digest, libraries


def test_each_file_of_a_library_is_as_it_came() -> None:
    for library in libraries():
        assert library.integrity.startswith("sha512-")
        assert any(name.endswith(".LICENSE") for name in library.files)
        for name, (_, sum_) in library.files.items():
            assert digest((STATIC / name).read_bytes()) == sum_, name


def test_the_bill_of_materials_names_them() -> None:
    told = {each["purl"]: each["licenses"] for each in bill_of_materials()["components"]}
    assert told["pkg:npm/%40xterm/xterm@5.5.0"] == [{"license": {"name": "MIT"}}]
