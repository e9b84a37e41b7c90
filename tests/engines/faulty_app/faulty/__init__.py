"""An app whose nodes may misbehave."""
