"""The providers' formats."""
