"""`sfactl web` in a real browser, and against requests that no browser of its user sends."""
