"""`sfactl web` against requests that no browser of its user sends, and, in `browser`, in a real
one."""
