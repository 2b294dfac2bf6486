"""Real agents under sfad, against a scripted model on loopback. Opt-in: see docs/agents.md."""
