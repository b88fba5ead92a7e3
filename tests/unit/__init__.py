"""The package itself: golden rows, properties, attacks. Seconds, any machine."""
