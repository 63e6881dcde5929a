"""One model behind the Open Inference Protocol: requests, a queue with batches, and the HTTP server."""
