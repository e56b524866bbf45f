"""Appends over HTTP: bodies, parameters, the handler, streams."""
