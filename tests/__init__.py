"""The benchmark: suites, the workshop they share, and the tests that judge them."""
