"""What is minimised: terms, weights, penalties, theorems."""
