"""Pruning of attention heads."""
