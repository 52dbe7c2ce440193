"""How fast the engine and servers are: latency and throughput offline, and a server under load."""
