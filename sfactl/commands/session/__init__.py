"""Delegate work to other agents: start, watch and stop sessions."""
