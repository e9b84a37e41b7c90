"""What Flower and NVFlare have in common: one client turn."""
