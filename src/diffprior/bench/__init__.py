"""What a decision costs, side by side with rivals on the same machine."""
