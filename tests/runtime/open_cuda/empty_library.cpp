// An empty library: it can be loaded, and has no symbols.
