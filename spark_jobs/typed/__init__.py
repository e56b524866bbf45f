"""Typed tables of a log with a schema: `records`, `dead_letters` and `current`."""
