// Owns the precompiled header that engine, optimizers, checkpoint, examples and benchmarks reuse.
