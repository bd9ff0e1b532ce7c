"""Who is to blame when a case goes wrong."""
