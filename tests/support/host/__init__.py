"""The machine under the run: what it is, whether it is ready, what its cards hold."""
