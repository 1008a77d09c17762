"""The engine process: scheduler, lanes, the loop and the socket server."""
