"""One log on disk: segments, manifest, recovery, and the small files beside it."""
