"""Real SQLite on real files."""
