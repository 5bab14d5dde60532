"""Attention: projections, scores, kernels, caches."""
