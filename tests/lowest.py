"""Try the lowest versions of libraries that pyproject.toml allows: `python -m tests.lowest`.

Resolves them with uv, installs them into `.venv-lowest`, and runs there what uses each library.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".venv-lowest"

TESTS = (
    "tests/protocol",  # msgspec
    "tests/test_config.py",
    "tests/processes",  # psutil, trio
    "tests/cli/test_options.py",  # typer
    "tests/cli/test_verbs.py",
    "tests/cli/test_mcp.py",
    "tests/usage",  # genai-prices
    "tests/features/metrics",  # prometheus-client, h11
    "tests/features/gateway/program",  # httpx2, brotli, zstd
    "tests/top",  # textual
    "tests/web",  # hypercorn, starlette, segno
)  # fmt: skip


def main() -> int:
    """Return the exit code of the tests."""
    python, wanted = VENV / "bin" / "python", VENV / "requirements.txt"
    uv: list[str | Path] = [sys.executable, "-m", "uv", "--quiet", "pip"]
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", VENV],
        [*uv, "compile", "--resolution", "lowest-direct", "--extra", "test", "--python", python,
         "--output-file", wanted, "pyproject.toml"],
        [*uv, "install", "--python", python, "--requirement", wanted],
        [*uv, "install", "--python", python, "--no-deps", "--editable", "."],
    ]  # fmt: skip
    for words in commands:
        subprocess.run(words, cwd=ROOT, check=True)
    return subprocess.run(
        [python, "-m", "pytest", "--tier", "fast", "-q", "-n", "2", *(sys.argv[1:] or TESTS)],
        cwd=ROOT,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
