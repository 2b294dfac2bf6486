"""Real agents under sfad, against a scripted model on loopback. Opt-in: `make agents` and
`make matrix`.

They cost nothing and need no key, but `npm` and Node.js 20 or newer. The first time fetches some
550 MB; 1.2 GB are kept in SFAD_AGENTS_DIR, by default sfad-tests/real_agents below XDG_CACHE_HOME
or ~/.cache. aider 0.86.2 was only tried by hand."""
