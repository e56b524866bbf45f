"""Reads over HTTP: selection, waiting, rendering."""
