"""The logs that a node hosts: opened, served, found and closed."""
