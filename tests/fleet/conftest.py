"""The browser of the tests of the console."""

from tests.web.conftest import browser

__all__ = ["browser"]
