"""Pages about all studies: the papers' claims, their tables as commands, the map of regimes, does it help, README."""
