"""What an engine says of itself, in its log and its metrics, and the contract that it must keep."""
