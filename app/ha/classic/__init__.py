"""Classic HA: a static master and its slaves (rules H). Pure."""
