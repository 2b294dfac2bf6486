"""Checks of runs, and setups of their worktrees, with real processes."""
