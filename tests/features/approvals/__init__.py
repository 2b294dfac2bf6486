"""Calls of tools that a person allows or denies."""
