"""Errors, value ranges, files and terminal output. Imports nothing else of t2x, and no jax."""
