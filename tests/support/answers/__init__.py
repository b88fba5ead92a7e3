"""What a server answers, and whether it is right: text, thinking, tools, log probabilities."""
