"""Damage on disk: found, repaired from peers, compared, set aside."""
