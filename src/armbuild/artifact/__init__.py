"""What was built, read: wheels, shared objects, tags, archives of strangers."""
