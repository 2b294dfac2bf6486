"""Which runs a request for labels means, in every verb that takes `--label`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def values_of(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The values that one key may have: a request names one, or several of which either will do."""
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)


def fits(wanted: Mapping[str, str | Sequence[str]], labels: Mapping[str, str]) -> bool:
    """Return whether `labels` has each key of `wanted`, with one of the values that are wanted for it."""
    return all(labels.get(key) in values_of(value) for key, value in wanted.items())
