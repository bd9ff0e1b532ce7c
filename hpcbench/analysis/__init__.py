"""Topics of ``advise`` beside the settings that it recommends: what is slow, and why."""
