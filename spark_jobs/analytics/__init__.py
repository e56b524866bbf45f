"""Analyses of the tables: fail-overs, service levels, delays, and their plots."""
