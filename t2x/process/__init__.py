"""Settings of this process that must precede the start of JAX: memory allocator, compilation cache, GPU flags."""
