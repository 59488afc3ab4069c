// Only here to own the precompiled header that all ports reuse.
