"""Layers for images."""
