"""Which logs a node hosts: opened, served, looked up and closed."""
