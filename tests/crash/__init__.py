"""The daemon is killed at each of its effects in turn, and what it promised is looked for from
outside."""
