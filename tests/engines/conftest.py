"""The apps in here are run by the engine, each from its own folder; they are no modules of the
tests.
"""

collect_ignore_glob = ["*_app/*"]
