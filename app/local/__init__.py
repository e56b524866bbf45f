"""A cluster of real processes on this machine, for `commitlog up` and the demo."""
