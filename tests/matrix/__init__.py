"""Every operation x every transform, measured by tests and shown in the documentation."""
