"""Which runs `--label` means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sfad.core.state.access import means


@pytest.mark.parametrize(
    ("wanted", "labels", "fit"),
    [
        ({}, {}, True),
        ({"k": "v"}, {}, False),
        ({"k": "v"}, {"k": "v", "l": "w"}, True),
        ({"k": ["u", "v"]}, {"k": "v"}, True),
        ({"k": ["u", "v"]}, {"k": "w"}, False),
        ({"k": ["u", "v"], "l": "w"}, {"k": "v"}, False),
        ({"k": "ab"}, {"k": "a"}, False),
        ({"k": []}, {"k": "v"}, False),
    ],
)
def test_either_value_of_each_key(
    wanted: Mapping[str, str | Sequence[str]], labels: Mapping[str, str], fit: bool
) -> None:
    assert means(None, wanted, "a name", labels) is fit
