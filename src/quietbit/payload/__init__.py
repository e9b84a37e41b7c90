"""Bytes on the wire: one frame for every mechanism, canonical, checked before it is believed."""
