"""AutoSwitch and classic HA."""
