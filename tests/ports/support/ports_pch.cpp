// This file exists to own the precompiled header that all ports reuse.
