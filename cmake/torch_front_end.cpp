// Only here to own the precompiled header that engine, optimizers, checkpoint, example and
// benchmarks reuse.
