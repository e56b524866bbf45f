"""Metrics that need more than a line each. Names are defined in app/telemetry.py."""
