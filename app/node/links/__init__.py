"""Protection of the connections between nodes: proof of the cluster secret, TLS, and bounds before either."""
