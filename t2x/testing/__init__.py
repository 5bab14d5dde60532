"""Checks of the contracts of parts."""
