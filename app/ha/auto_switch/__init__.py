"""AutoSwitch HA, the data plane of controller mode (rules A, C-07, C-08, C-11, C-12). Pure."""
