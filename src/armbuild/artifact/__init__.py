"""Readers of what was built: wheels, shared objects, tags, untrusted archives."""
