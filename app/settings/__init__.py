"""The settings of a node: frozen dataclasses, and the reader of configuration files."""
