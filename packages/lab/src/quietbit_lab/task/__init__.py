"""What is learnt: data sets, features, models; each becomes a `Problem` that the simulator can train."""
