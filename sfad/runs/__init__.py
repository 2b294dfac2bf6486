"""Live runs, as the shell knows them."""
