"""Types and protocols shared by every room: data one can print, store and replay."""
