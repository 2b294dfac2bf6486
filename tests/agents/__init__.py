"""Real Claude Code and Codex under sfad, against a scripted model on loopback. Opt-in: see docs/real-agents.md."""
