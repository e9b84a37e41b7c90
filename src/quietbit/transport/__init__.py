"""An update leaves a client as bytes and arrives, with all the others, as a mean."""
