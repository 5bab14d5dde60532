"""Verdicts on differences between variants, from NumPy arrays or tables; SciPy is imported on first use, jax never."""
