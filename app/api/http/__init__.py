"""Shared by all routes: messages, dependencies, limits, tokens, problem documents."""
