"""The short hashes by which subscriptions are told apart. What they are made of, a credential or the name of an organization, is
kept nowhere."""

import hashlib

_DIGITS = 12
"""Hex digits that are kept: 48 bits tell the accounts of one machine apart, and lead back to no key."""


def digest(secret: str) -> str:
    """Return a short hash of a credential or an organization."""
    return hashlib.sha256(f"sfad plan {secret}".encode()).hexdigest()[:_DIGITS]
