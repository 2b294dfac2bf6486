"""Which features this sfad has. What needs one is imported where it is used."""

from importlib.util import find_spec


def has(feature: str) -> bool:
    """Return whether the folder of a feature is there."""
    return find_spec(f"sfad.features.{feature}") is not None
