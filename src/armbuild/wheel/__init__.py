"""Build, repair, audit and test a wheel of a project."""
