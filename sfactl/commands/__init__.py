"""One file a verb, named like the verb: `PARAMETERS`, and `main(...)` which returns the exit code."""
