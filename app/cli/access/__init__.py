"""Commands for access to the service."""
