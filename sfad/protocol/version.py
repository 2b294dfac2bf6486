"""Protocol versions. A new one is needed when an old peer would misread a message, not when a field is added."""

VERSION = 1
"""The newest version this build speaks."""

SUPPORTED = (1,)
"""Every version this build speaks. `Hello.versions` and `Welcome.version` negotiate the highest both sides know."""
