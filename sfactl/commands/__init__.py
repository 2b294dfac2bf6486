"""The verbs, one module each; `sfactl help` lists them. Each has `PARAMETERS`, and `main(...)`,
which returns the exit code."""
