"""Damage of a log's files: survey, scrub, patch."""
