"""The machine that builds: its Pythons, its cache, how programs are started, what it lacks."""
