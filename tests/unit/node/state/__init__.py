"""The state that a log derives from its records, on disk and on its way to other replicas."""
