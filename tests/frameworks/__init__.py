"""The examples of docs/python.md with frameworks, in a virtual environment of their own."""
