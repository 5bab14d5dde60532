"""Ownership and status of a run's folder."""
