"""Connections between nodes: peers, HA slaves, forwarded HTTP calls."""
