"""What others may watch: the JSON log."""
