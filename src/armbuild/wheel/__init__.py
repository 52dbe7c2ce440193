"""From a project to a wheel that was built, repaired, audited and run."""
