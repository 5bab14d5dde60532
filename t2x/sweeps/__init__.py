"""Ablations: a sweep of trials under a matched budget, run, compared and reported."""
