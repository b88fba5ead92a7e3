"""Where a run's checkpoints come from: a folder or the hub, and the hash that names them."""
