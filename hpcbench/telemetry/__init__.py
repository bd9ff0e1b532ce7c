"""Readings that a supervisor takes of its machine while its worker measures (docs/telemetry.md)."""
