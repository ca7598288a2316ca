"""Data with a known truth, and readers of real data."""
