"""Build of the distribution `commitlog`: the build backend, and files that only the wheel has."""
