"""The sections of the gallery, one module per domain."""
