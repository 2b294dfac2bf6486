"""Which runs a request for names and labels means, in each verb that takes `--name` and `--label`."""

from collections.abc import Mapping, Sequence


def values_of(wanted: str | Sequence[str]) -> tuple[str, ...]:
    """The values that one key may have: a request names one, or several of which either will do."""
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)


def means(
    name: str | Sequence[str] | None, wanted: Mapping[str, str | Sequence[str]], run_name: str, labels: Mapping[str, str]
) -> bool:
    """Return whether a request for one of these names, and for these labels, means a run with this name and these labels."""
    named = name is None or run_name in values_of(name)
    return named and all(labels.get(key) in values_of(value) for key, value in wanted.items())
