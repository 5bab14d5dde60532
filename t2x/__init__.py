"""t2x: modular Transformers in JAX and Flax, configured with gin, and controlled ablation studies."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from t2x.api import load, read_config, read_experiment

__version__ = '0.1.0'
__all__ = ['load', 'read_config', 'read_experiment']


def __getattr__(name: str) -> Any:
  # Imported lazily, so that `t2x --help` imports neither jax nor gin.
  if name in __all__:
    from t2x import api

    return getattr(api, name)
  raise AttributeError(f"module 't2x' has no attribute '{name}'")
