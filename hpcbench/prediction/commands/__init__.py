"""The commands of this part."""
