"""Attention patterns: which keys a query attends to."""
