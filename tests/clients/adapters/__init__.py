"""One file for each client library: the same few calls, done the way that library's users do them."""
