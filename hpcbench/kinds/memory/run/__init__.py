"""Steps that are followed, storage by storage."""
