"""Damage on disk: detection, repair from peers, comparison of replicas, quarantine."""
