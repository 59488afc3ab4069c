// This file exists to own the precompiled header that all torch tests reuse.
