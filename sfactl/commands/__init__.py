"""The verbs, one module each, with a function that is named like the verb and returns the exit
code. `sfactl help` lists them."""
