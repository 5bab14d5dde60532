"""Wiring of sublayers around the residual stream."""
