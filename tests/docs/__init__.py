"""Test the documentation: decode, parse and run what it shows, and compare it with the code.

`python -m tests.docs` (`make docs`) writes the generated parts; the tests fail while they are out
of date.
"""
