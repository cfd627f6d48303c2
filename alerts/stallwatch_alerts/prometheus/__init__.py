"""For people who alert through Prometheus: the rules that follow from the catalogue, and their links."""
