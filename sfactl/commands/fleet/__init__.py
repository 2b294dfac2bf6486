"""Nodes of the fleet."""
