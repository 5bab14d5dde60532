"""Mixers other than attention, and attention for long sequences."""
