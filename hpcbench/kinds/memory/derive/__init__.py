"""What was held, beside what was predicted."""
