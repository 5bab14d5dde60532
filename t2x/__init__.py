"""t2x: transformers in JAX and Flax, chosen part by part in gin files, and ablations to trust."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t2x.api import load, read_config, read_experiment

__version__ = '0.1.0'
__all__ = ['load', 'read_config', 'read_experiment']


def __getattr__(name: str) -> Any:
  # Imported when used: `t2x --help` needs neither jax nor gin.
  if name in __all__:
    from t2x import api

    return getattr(api, name)
  raise AttributeError(f"module 't2x' has no attribute '{name}'")
