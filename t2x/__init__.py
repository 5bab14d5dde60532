"""t2x: transformers in JAX and Flax, chosen part by part in gin files, and ablations to trust."""

__version__ = '0.1.0'
