"""From source to source: what is refused, which variables live, and the rewritten program."""
