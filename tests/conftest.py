"""Every test runs on the CPU, with the jaxtyping annotations of t2x checked at run time."""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jaxtyping

jaxtyping.install_import_hook('t2x', 'beartype.beartype')
