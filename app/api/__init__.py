"""The REST service of a node: its routes, tokens, limits and metrics."""
