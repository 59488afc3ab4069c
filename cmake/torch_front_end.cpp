// Only here to own the precompiled header that engine, optimizers, example and benchmarks reuse.
