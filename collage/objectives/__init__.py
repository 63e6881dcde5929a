"""Goals beyond the latency of one request: throughput and memory, measured with requests that run at once."""
