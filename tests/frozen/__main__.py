"""Write the bytes of this version: `python -m tests.frozen`."""

from .written import write

if __name__ == "__main__":
    print(f"wrote {write()}")
