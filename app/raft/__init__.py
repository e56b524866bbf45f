"""Raft mode, pure: terms and votes, a dispatcher for each peer, the quorum checker, reads."""
