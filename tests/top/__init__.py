"""`sfactl top`: the tree as data, the real program in a terminal, and in a browser."""
