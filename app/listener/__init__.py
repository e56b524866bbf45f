"""The REST listener: its TLS, its connections, and their limits."""
