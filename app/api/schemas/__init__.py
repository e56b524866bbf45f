"""Schemas of logs: routes and documents."""
