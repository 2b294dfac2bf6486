"""`sfactl web` in a real browser."""
