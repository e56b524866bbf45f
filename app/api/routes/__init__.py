"""The routes of the REST contract (docs/api.md, section 5)."""
