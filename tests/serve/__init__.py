"""Each build on one engine: the boot contract, and answers that are really checked."""
