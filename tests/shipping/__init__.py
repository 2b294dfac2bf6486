"""Files that are sent with runs."""
