// Only here to own the precompiled header that all torch tests reuse.
