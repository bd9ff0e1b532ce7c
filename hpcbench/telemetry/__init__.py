"""What a supervisor reads of its machine while its worker measures (docs/telemetry.md)."""
