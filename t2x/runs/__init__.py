"""Finds run folders, and compares runs on one page."""
