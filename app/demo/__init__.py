"""`commitlog demo`: the whole product on real input, with a killed leader and with proofs."""
