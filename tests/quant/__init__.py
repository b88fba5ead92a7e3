"""What each format did to the weights."""
