"""Which authorities the gateway trusts when it connects to an upstream."""

import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import httpx2

from ..host.tasks import in_thread

MOST_FILES = 64
"""Files of certificates that trees may name. A user who names more gets an error of TLS for the rest."""


class Trust:
    """Those that httpx2 finds in the environment, and those in files that the environments of its user's trees name."""

    def __init__(self, trouble: Callable[[str], None]) -> None:
        self.context: ssl.SSLContext = httpx2.create_ssl_context()
        self._trouble = trouble
        self._known: set[str] = set()

    async def add(self, path: str) -> None:
        """Trust the certificates in a file, too. It is read once."""
        if path in self._known or len(self._known) >= MOST_FILES:
            return
        try:
            await in_thread(self._load, path)
        except (OSError, ValueError) as error:  # an error of TLS follows if they were needed
            self._trouble(f"the certificates in {path} cannot be loaded: {error}")
        self._known.add(path)

    def _load(self, path: str) -> None:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ValueError("it is not a regular file")
        self.context.load_verify_locations(path)
