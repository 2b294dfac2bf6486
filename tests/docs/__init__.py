"""The documentation is tested: what it shows is decoded, parsed and compared with the code.

`python -m tests.docs` (`make docs`) writes the generated parts; the tests fail while they are out of date.
"""
