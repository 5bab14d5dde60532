"""Every test runs on the CPU, with the jaxtyping annotations of t2x checked at run time."""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Programs that run for milliseconds: compiling them is nearly all that the tests do.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', 'true')

import jaxtyping

jaxtyping.install_import_hook('t2x', 'beartype.beartype')
