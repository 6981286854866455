"""Methods: one short file each, composed from parts."""
