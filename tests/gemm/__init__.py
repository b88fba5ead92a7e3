"""What each number format can give on this card."""
