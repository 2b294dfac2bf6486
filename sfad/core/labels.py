"""Which runs a request for names and labels means, in each verb that takes `--name` and `--label`."""

from collections.abc import Mapping, Sequence


def values_of(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The values that one key may have: a request names one, or several of which either will do."""
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)


def fits(wanted: Mapping[str, str | Sequence[str]], labels: Mapping[str, str]) -> bool:
    """Return whether `labels` has each key of `wanted`, with one of the values that are wanted for it."""
    return all(labels.get(key) in values_of(value) for key, value in wanted.items())


def means(
    name: str | Sequence[str] | None, wanted: Mapping[str, str | Sequence[str]], run_name: str, labels: Mapping[str, str]
) -> bool:
    """Return whether a request for one of these names, and for these labels, means a run with this name and these labels."""
    return (name is None or run_name in values_of(name)) and fits(wanted, labels)
