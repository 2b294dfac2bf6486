"""The unit files."""
