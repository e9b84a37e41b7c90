"""The app is run by Flower, never collected."""

collect_ignore_glob = ["*"]
