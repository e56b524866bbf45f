"""Pure cores of the two master/slave modes: AutoSwitch (the data plane of controller mode) and classic HA."""
